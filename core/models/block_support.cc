#include <palimpsest/core/models/block_support.h>

#include <palimpsest/core/kernels/linear.h>

namespace palimpsest {

DropoutUse dropout_use(double p, uint32_t block, uint32_t call, const BlockContext& context) {
  if (p == 0 || !context.training) {
    return {};
  }
  check(
      context.batch != nullptr && context.batch->rows.defined(),
      "dropout needs the rows' numbers in the step");
  return {
      .p = p,
      .key = {.seed = context.seed, .step = context.step, .block = block, .call = call},
      .rows = context.batch->rows};
}

at::Tensor project_residual(
    const at::Tensor& branch,
    const ParamRef& weight,
    const ParamRef& bias,
    const at::Tensor& x,
    const DropoutUse& dropout) {
  if (dropout.p == 0) {
    return kernels::linear_forward(branch, weight.view(), bias.view(), as_rows(x)).view(x.sizes());
  }
  const at::Tensor projected = kernels::linear_forward(branch, weight.view(), bias.view());
  at::Tensor dropped =
      kernels::dropout_forward(projected.view(x.sizes()), dropout.p, dropout.key, dropout.rows);
  return dropped.add_(x);
}

at::Tensor branch_gradient(const at::Tensor& dy, const DropoutUse& dropout) {
  return dropout.p == 0 ? dy : kernels::dropout_backward(dy, dropout.p, dropout.key, dropout.rows);
}

} // namespace palimpsest
