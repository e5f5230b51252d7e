#include <palimpsest/core/models/squared_error.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/sum.h>

namespace palimpsest {

LossResult SquaredErrorBlock::forward(
    TensorSpan inputs,
    bool gradient,
    const BlockContext& context) {
  const at::Tensor& prediction = inputs[0];
  const at::Tensor& targets = context.batch->labels;
  check(prediction.sizes() == targets.sizes(), "predictions and targets differ in shape");
  at::Tensor error = prediction.to(at::kFloat).sub(targets.to(at::kFloat));
  const at::Tensor wide = error.to(at::kDouble);
  LossResult result{.loss_sum = at::sum(wide.mul(wide)).item<double>(), .grad_inputs = {}};
  if (gradient) {
    result.grad_inputs = {error.mul_(2 * context.loss_scale).to(prediction.scalar_type())};
  }
  return result;
}

double SquaredErrorBlock::forward_flops(TensorSpan inputs) const {
  return 3 * static_cast<double>(inputs[0].numel());
}

std::string SquaredErrorBlock::kind() const {
  return "squared error";
}

} // namespace palimpsest
