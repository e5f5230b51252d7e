#include <palimpsest/core/models/mlp_block.h>

#include <palimpsest/core/models/block_support.h>
#include <palimpsest/core/models/residual_tape.h>

#include <ATen/ops/empty.h>

#include <fmt/format.h>

#include <utility>

namespace palimpsest {

class MlpBlock::MlpTape : public ResidualTape {
 public:
  MlpTape(const MlpBlock& block, bool graded)
      : ResidualTape(block.weights_.norm, block.weights_.inner, graded), block_(block) {}

  at::Tensor inner; // [R,2I], [R,I] without a gate
  at::Tensor activated; // [R,I]; full tapes only, where a gradient needs it

 private:
  at::Tensor inner_gradient(const at::Tensor& dy, const at::Tensor& x, const BlockContext& context)
      override;
  std::vector<at::Tensor*> branch_tensors() override {
    return {&inner, &activated};
  }

  const MlpBlock& block_;
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

at::Tensor MlpBlock::MlpTape::inner_gradient(
    const at::Tensor& dy,
    const at::Tensor& /*x*/,
    const BlockContext& context) {
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
