#include <palimpsest/core/models/mlp_block.h>

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
    for (at::Tensor* tensor : {&normed, &statistics, &inner, &activated}) {
      if (tensor->defined()) {
        result.push_back(tensor);
      }
    }
    return result;
  }

  at::Tensor normed; // [R,H]; full tapes only, where a gradient needs it
  at::Tensor statistics; // [R] or [R,2]
  at::Tensor inner; // [R,2I], [R,I] without a gate
  at::Tensor activated; // [R,I]; full tapes only, where a gradient needs it

 private:
  at::Tensor inner_gradient(const at::Tensor& dy, const BlockContext& context);

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
  auto [normed, statistics] = weights_.norm.forward(as_rows(x));
  at::Tensor inner = weights_.inner.forward(normed, context);
  const bool full = request.tape == TapeMode::kFull;
  const bool keeps_activated = full && weights_.down.backward_reads_input();
  if (!full || !weights_.inner.backward_reads_input()) {
    normed.reset();
  }
  at::Tensor activated;
  if (wanted || keeps_activated) {
    activated = shape_.gated ? kernels::glu_forward(inner, shape_.activation)
                             : kernels::activation_forward(inner, shape_.activation);
  }
  ForwardResult result;
  if (request.tape == TapeMode::kNone) {
    inner.reset();
  } else {
    auto tape = std::make_unique<MlpTape>(*this, grades(request));
    tape->normed = std::move(normed);
    tape->statistics = std::move(statistics);
    tape->inner = std::move(inner);
    tape->activated = keeps_activated ? activated : at::Tensor();
    result.tape = std::move(tape);
  }
  if (wanted) {
    result.values = {project_residual(
        activated,
        weights_.down,
        x,
        dropout_use(shape_.residual_dropout, shape_.block, 0, context),
        context)};
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
  check(inner.defined(), "an MLP tape is spent twice");
  jobs_.defer(part == BackwardPart::kInput);
  const MlpWeights& weights = block_.weights_;
  const at::Tensor rows = as_rows(inputs[0]);
  at::Tensor dinner = inner_gradient(grad_outputs[0], context);

  if (!normed.defined() && weights.inner.backward_reads_input()) {
    normed = weights.norm.forward(rows).y;
  }
  jobs_.linear(dinner, normed, weights.inner, context);
  normed.reset();
  if (!graded_ && !weights.norm.trainable()) {
    statistics.reset();
    return {at::Tensor()};
  }
  const at::Tensor dnormed = weights.inner.backward_input(dinner, context);
  dinner.reset();
  const at::Tensor dx = jobs_.norm(
      dnormed, rows, weights.norm, std::exchange(statistics, {}), as_rows(grad_outputs[0]));
  return {graded_ ? dx.view(inputs[0].sizes()) : at::Tensor()};
}

/// Back from the block's output to the gradient of the inner layers' outputs. Frees what the tape held for it.
at::Tensor MlpBlock::MlpTape::inner_gradient(const at::Tensor& dy, const BlockContext& context) {
  const MlpShape& shape = block_.shape_;
  const MlpWeights& weights = block_.weights_;
  const at::Tensor branch =
      as_rows(branch_gradient(dy, dropout_use(shape.residual_dropout, shape.block, 0, context)));
  const at::Tensor dactivated = weights.down.backward_input(branch, context);
  const bool redo = !activated.defined() && weights.down.backward_reads_input();
  at::Tensor redone;
  at::Tensor dinner;
  if (shape.gated) {
    if (redo) {
      redone = at::empty(dactivated.sizes(), dactivated.options());
    }
    dinner = kernels::glu_backward(dactivated, std::exchange(inner, {}), shape.activation, redone);
  } else {
    if (redo) {
      redone = kernels::activation_forward(inner, shape.activation);
    }
    dinner = dactivated; // in its place
    kernels::activation_backward(dactivated, std::exchange(inner, {}), shape.activation, dinner);
  }
  jobs_.linear(
      branch, redone.defined() ? redone : std::exchange(activated, {}), weights.down, context);
  return dinner;
}

double MlpBlock::forward_flops(TensorSpan inputs) const {
  const double rows = row_count(inputs[0]);
  return weights_.inner.forward_flops(rows) + weights_.down.forward_flops(rows);
}

double MlpBlock::value_flops(TensorSpan inputs) const {
  return weights_.down.forward_flops(row_count(inputs[0]));
}

double MlpBlock::backward_flops(TensorSpan inputs) const {
  const double rows = row_count(inputs[0]);
  return weights_.inner.backward_flops(rows) + weights_.down.backward_flops(rows);
}

std::string MlpBlock::kind() const {
  return fmt::format(
      "mlp {} {}{}{}{}",
      shape_.hidden_size,
      shape_.intermediate_size,
      shape_.gated ? "" : " without gate",
      weights_.inner.kind(),
      weights_.down.kind());
}

} // namespace palimpsest
