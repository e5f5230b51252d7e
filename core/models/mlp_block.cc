#include <palimpsest/core/models/mlp_block.h>

#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/core/kernels/norm.h>
#include <palimpsest/core/models/block_support.h>
#include <palimpsest/core/models/weight_jobs.h>

#include <ATen/ops/empty.h>

#include <fmt/format.h>

#include <utility>

namespace palimpsest {

class MlpBlock::MlpTape : public Tape {
 public:
  MlpTape(const MlpBlock& block, bool graded) : block_(block), graded_(graded) {}

  Tensors backward(
      TensorSpan inputs,
      TensorSpan grad_outputs,
      BackwardPart part,
      const BlockContext& context) override;

  std::vector<at::Tensor*> tensors() override {
    std::vector<at::Tensor*> result = jobs_.tensors();
    for (at::Tensor* tensor : {&normed, &rstd, &gate_up, &gated}) {
      if (tensor->defined()) {
        result.push_back(tensor);
      }
    }
    return result;
  }

  at::Tensor normed; // [R,H]; full tapes only
  at::Tensor rstd; // [R]
  at::Tensor gate_up; // [R,2I]
  at::Tensor gated; // [R,I]; full tapes only

 private:
  at::Tensor gate_up_gradient(const at::Tensor& dy, const BlockContext& context);

  const MlpBlock& block_;
  bool graded_; // whether the input's gradient is wanted
  WeightJobs jobs_;
};

ForwardResult MlpBlock::forward(
    TensorSpan inputs,
    const ForwardRequest& request,
    const BlockContext& context) {
  const bool wanted = yields(request);
  if (!wanted && request.tape == TapeMode::kNone) {
    return {};
  }
  const at::Tensor& x = inputs[0];
  auto [normed, rstd] =
      kernels::rms_norm_forward(as_rows(x), weights_.norm.view(), shape_.rms_norm_eps);
  at::Tensor gate_up =
      kernels::linear_forward(normed, weights_.gate_up.view(), weights_.gate_up_bias.view());
  const bool full = request.tape == TapeMode::kFull;
  if (!full) {
    normed.reset();
  }
  at::Tensor gated;
  if (wanted || full) {
    gated = kernels::glu_forward(gate_up, shape_.activation);
  }
  ForwardResult result;
  if (request.tape == TapeMode::kNone) {
    gate_up.reset();
  } else {
    auto tape = std::make_unique<MlpTape>(*this, grades(request));
    tape->normed = std::move(normed);
    tape->rstd = std::move(rstd);
    tape->gate_up = std::move(gate_up);
    tape->gated = full ? gated : at::Tensor();
    result.tape = std::move(tape);
  }
  if (wanted) {
    result.values = {project_residual(
        gated,
        weights_.down,
        weights_.down_bias,
        x,
        dropout_use(shape_.residual_dropout, shape_.block, 0, context))};
  }
  return result;
}

Tensors MlpBlock::MlpTape::backward(
    TensorSpan inputs,
    TensorSpan grad_outputs,
    BackwardPart part,
    const BlockContext& context) {
  if (part == BackwardPart::kWeight) {
    jobs_.run();
    return {};
  }
  check(gate_up.defined(), "an MLP tape is spent twice");
  jobs_.defer(part == BackwardPart::kInput);
  const MlpWeights& weights = block_.weights_;
  const at::Tensor rows = as_rows(inputs[0]);
  at::Tensor dgate_up = gate_up_gradient(grad_outputs[0], context);

  if (!normed.defined() && weights.gate_up.trainable()) {
    normed = kernels::rms_norm_forward(rows, weights.norm.view(), block_.shape_.rms_norm_eps).y;
  }
  jobs_.linear(dgate_up, normed, weights.gate_up, weights.gate_up_bias);
  normed.reset();
  if (!graded_ && !weights.norm.trainable()) {
    rstd.reset();
    return {at::Tensor()};
  }
  const at::Tensor dnormed = kernels::linear_backward_input(dgate_up, weights.gate_up.view());
  dgate_up.reset();
  const at::Tensor dx = jobs_.rms_norm(
      dnormed, rows, weights.norm, std::exchange(rstd, {}), as_rows(grad_outputs[0]));
  return {graded_ ? dx.view(inputs[0].sizes()) : at::Tensor()};
}

/// Back from the block's output to the gradient of gate and up. Frees what the tape held for it.
at::Tensor MlpBlock::MlpTape::gate_up_gradient(const at::Tensor& dy, const BlockContext& context) {
  const MlpShape& shape = block_.shape_;
  const MlpWeights& weights = block_.weights_;
  const at::Tensor branch =
      as_rows(branch_gradient(dy, dropout_use(shape.residual_dropout, shape.block, 0, context)));
  const at::Tensor dgated = kernels::linear_backward_input(branch, weights.down.view());
  at::Tensor redone;
  if (!gated.defined() && weights.down.trainable()) {
    redone = at::empty(dgated.sizes(), dgated.options());
  }
  at::Tensor dgate_up =
      kernels::glu_backward(dgated, std::exchange(gate_up, {}), shape.activation, redone);
  jobs_.linear(
      branch,
      redone.defined() ? redone : std::exchange(gated, {}),
      weights.down,
      weights.down_bias);
  return dgate_up;
}

double MlpBlock::forward_flops(TensorSpan inputs) const {
  const double rows = static_cast<double>(inputs[0].size(0) * inputs[0].size(1));
  return rows * 6 * static_cast<double>(shape_.hidden_size * shape_.intermediate_size);
}

double MlpBlock::value_flops(TensorSpan inputs) const {
  return forward_flops(inputs) / 3;
}

std::string MlpBlock::kind() const {
  return fmt::format("mlp {} {}", shape_.hidden_size, shape_.intermediate_size);
}

} // namespace palimpsest
