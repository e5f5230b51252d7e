#include <palimpsest/core/models/block_support.h>

namespace palimpsest {

at::Tensor project_residual(
    const at::Tensor& branch,
    const Linear& layer,
    const at::Tensor& x,
    const DropoutUse& dropout,
    const BlockContext& context) {
  if (dropout.p == 0) {
    return layer.forward(branch, context, as_rows(x)).view(x.sizes());
  }
  const at::Tensor projected = layer.forward(branch, context);
  at::Tensor dropped =
      kernels::dropout_forward(projected.view(x.sizes()), dropout.p, dropout.key, dropout.rows);
  return dropped.add_(x);
}

at::Tensor branch_gradient(const at::Tensor& dy, const DropoutUse& dropout) {
  return dropout.p == 0 ? dy : kernels::dropout_backward(dy, dropout.p, dropout.key, dropout.rows);
}

} // namespace palimpsest
