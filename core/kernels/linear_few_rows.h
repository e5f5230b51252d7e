#pragma once

// y = x w^T + b for a few rows of x: what generating a token asks for. Such a product reads each
// weight once and hardly computes, so it is bound by memory; a general matrix product, which first
// packs the weight, is not.
//
//   if (is_few_rows(x, weight)) {
//     linear_few_rows(y, x, weight, bias, residual);
//   }
//
// Private to core/kernels; linear.h says what is computed. A row's result depends, to the bit, on
// that row alone: not on how many others there are, nor on the number of threads.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace palimpsest::kernels {

/// From here on the weight is worth packing.
inline constexpr int64_t kFewRows = 32;

/// On the CPU, fp32 or bf16, at most kFewRows rows, and a weight [N,K] whose rows or columns are
/// contiguous.
bool is_few_rows(const at::Tensor& x, const at::Tensor& weight);

/// y [M,N] = x [M,K] weight^T + bias [N] + residual [M,N], the last two where defined; all of one
/// dtype with contiguous last dimensions, but for the weight. `residual` may be `y`.
void linear_few_rows(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& residual);

} // namespace palimpsest::kernels
