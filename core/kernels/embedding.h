#pragma once

// Rows of a table by token id, and their gradient.
//
//   at::Tensor hidden = kernels::embedding_forward(ids, weight);
//   kernels::embedding_backward(ids, dhidden, grad_weight);   // adds into the buffer

#include <ATen/core/Tensor.h>

namespace palimpsest::kernels {

/// ids int64 [N] in [0,V), weight [V,H] -> [N,H], times `scale` rounded to the weight's dtype. An id out of range throws InternalError: data
/// checks first.
at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& weight, double scale = 1);

/// Adds row n of dy [N,H], times the same scale, into row ids[n] of grad_weight [V,H], in the order of n: the
/// bits depend on neither timing nor thread count. Of a bf16 grad_weight a row's sum is made in fp32
/// and rounded once, with what the row held.
void embedding_backward(
    const at::Tensor& ids,
    const at::Tensor& dy,
    const at::Tensor& grad_weight,
    double scale = 1);

} // namespace palimpsest::kernels
