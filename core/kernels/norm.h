#pragma once

// Root-mean-square normalisation (Zhang and Sennrich, 2019), forward and backward in one pass each.
//
//   auto [y, rstd] = kernels::rms_norm_forward(x, weight, 1e-5);
//   at::Tensor dx = kernels::rms_norm_backward(dy, x, weight, rstd, grad_weight, dresidual);
//
// The order of roundings is that of Hugging Face's models: LLaMA's normalises in fp32, casts to x's
// dtype and then multiplies by the weight; Gemma's multiplies by 1 + weight in fp32 and rounds once.
// Statistics and gradients are computed in fp32. Tensors are fp32 or bf16; no rows is legal.

#include <ATen/core/Tensor.h>

namespace palimpsest::kernels {

/// What the normalised values are multiplied by.
enum class RmsGain {
  kWeight, ///< LLaMA's
  kOnePlusWeight, ///< Gemma's
};

struct RmsNormOutput {
  at::Tensor y; ///< [R,H] in x's dtype
  at::Tensor rstd; ///< [R] fp32: 1 / sqrt(mean(x^2) + eps); what the backward needs besides x
};

/// x [R,H], weight [H] of x's dtype.
RmsNormOutput rms_norm_forward(
    const at::Tensor& x,
    const at::Tensor& weight,
    double eps,
    RmsGain gain = RmsGain::kWeight);

/// The same for the heads of a fused tensor: x and y [N,heads,D], often views, with any strides but
/// 1 in the last dimension. Fills y and returns rstd [N * heads].
at::Tensor rms_norm_forward_out(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight,
    double eps,
    RmsGain gain = RmsGain::kWeight);

/// The gradient of x [R,H] in dy's dtype. `grad_weight` fp32 [H] is added into; leave it undefined
/// for a frozen weight. `add_to` [R,H], where defined, is added to the result before it is rounded:
/// the gradient that arrives over the residual branch. The weight gradient's bits depend on nothing
/// but the inputs, the thread count included.
at::Tensor rms_norm_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& rstd,
    const at::Tensor& grad_weight = {},
    const at::Tensor& add_to = {},
    RmsGain gain = RmsGain::kWeight);

/// The same for heads, in place: dy [N,heads,D] becomes the gradient of x.
void rms_norm_backward_(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& rstd,
    const at::Tensor& grad_weight = {},
    RmsGain gain = RmsGain::kWeight);

} // namespace palimpsest::kernels
