#pragma once

// Layer normalisation (Ba et al., 2016) with gain and bias, forward and backward in one pass each.
//
//   auto [y, statistics] = kernels::layer_norm_forward(x, weight, bias, 1e-5);
//   at::Tensor dx = kernels::layer_norm_backward(dy, x, weight, statistics, grad_weight, grad_bias, dresidual);
//
// Computed in fp32 and rounded once. Tensors are fp32 or bf16 [R,H]; R = 0 is legal.

#include <ATen/core/Tensor.h>

namespace palimpsest::kernels {

struct LayerNormOutput {
  at::Tensor y; ///< [R,H] in x's dtype
  at::Tensor statistics; ///< [R,2] fp32: each row's mean, and 1 / sqrt(variance + eps)
};

/// (x - mean) / sqrt(variance + eps) * weight + bias: x [R,H], weight and bias [H] of x's dtype.
LayerNormOutput layer_norm_forward(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps);

/// The gradient of x [R,H] in dy's dtype. `grad_weight` and `grad_bias`, fp32 [H], are added into;
/// leave undefined what is frozen. `add_to` [R,H], where defined, is added to the result before it
/// is rounded: the gradient that arrives over the residual branch. The parameters' gradients depend
/// on nothing but the inputs, the thread count included.
at::Tensor layer_norm_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& statistics,
    const at::Tensor& grad_weight = {},
    const at::Tensor& grad_bias = {},
    const at::Tensor& add_to = {});

} // namespace palimpsest::kernels
