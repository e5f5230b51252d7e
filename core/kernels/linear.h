#pragma once

// y = x w^T + b and its three gradients, on fp32 and bf16 without copies or transposes; fp16.
//
//   at::Tensor y = kernels::linear_forward(x, weight, bias);
//   at::Tensor dx = kernels::linear_backward_input(dy, weight);
//   kernels::linear_backward_weight(dy, x, grad_weight, grad_bias);   // adds into the buffers
//
// On the CPU the products run in oneDNN, called directly: about twice the speed of at::linear where
// that goes through MKL on a processor that MKL does not favour. bf16 products accumulate in fp32.
// fp16 ones are computed in fp32, on copies of the activations and of a panel of the weight at a
// time: x86 has hardly any instructions for them. Any other device or dtype takes ATen.
//
// All matrices are 2-D. Inputs may be views at any element offset and with any row stride; one
// whose last dimension is not contiguous is copied first. Outputs must have a contiguous last
// dimension. A weight and its gradient may also be the transposed view of a matrix that is stored
// [K,N] (GPT-2's): nothing is copied then either. No rows (M = 0) is legal. A mismatch of shapes or dtypes throws InternalError.

#include <ATen/core/Tensor.h>

namespace palimpsest::kernels {

/// x [M,K] times weight [N,K] transposed, plus bias [N] and residual [M,N] where defined -> [M,N]
/// in x's dtype. One rounding at the end: the product, bias and residual are summed in fp32.
at::Tensor linear_forward(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias = {},
    const at::Tensor& residual = {});

/// The same into `y` [M,N]. `residual` may be `y` itself: then the product is added to what y
/// holds.
void linear_forward_out(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias = {},
    const at::Tensor& residual = {});

/// dy [M,N] times weight [N,K] -> dx [M,K] in dy's dtype.
at::Tensor linear_backward_input(const at::Tensor& dy, const at::Tensor& weight);

/// The same into `dx` [M,K]; with `accumulate` it is added to what dx holds.
void linear_backward_input_out(
    const at::Tensor& dx,
    const at::Tensor& dy,
    const at::Tensor& weight,
    bool accumulate = false);

/// dy [M,N] transposed times x [M,K], added into grad_weight [N,K]; the column sums of dy added into
/// grad_bias [N] where defined. Both gradients are fp32 or bf16; summed in fp32, and a bf16 one is
/// rounded once, with what it held. `overwrite` stores instead of adding: the same bits as adding to
/// zeros, without reading them.
void linear_backward_weight(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& grad_weight,
    const at::Tensor& grad_bias = {},
    bool overwrite = false);

} // namespace palimpsest::kernels
