#include <palimpsest/core/models/norm.h>

#include <palimpsest/core/kernels/layer_norm.h>

#include <utility>

namespace palimpsest {

Norm::Output Norm::forward(const at::Tensor& x) const {
  if (kind == NormKind::kLayer) {
    auto [y, statistics] = kernels::layer_norm_forward(x, gain.view(), bias.view(), eps);
    return {std::move(y), std::move(statistics)};
  }
  auto [y, rstd] = kernels::rms_norm_forward(x, gain.view(), eps, rms_gain());
  return {std::move(y), std::move(rstd)};
}

at::Tensor Norm::backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& statistics,
    const at::Tensor& grad_gain,
    const at::Tensor& grad_bias,
    const at::Tensor& add_to) const {
  if (kind == NormKind::kLayer) {
    return kernels::layer_norm_backward(
        dy, x, gain.view(), statistics, grad_gain, grad_bias, add_to);
  }
  return kernels::rms_norm_backward(dy, x, gain.view(), statistics, grad_gain, add_to, rms_gain());
}

} // namespace palimpsest
