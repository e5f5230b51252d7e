#pragma once

// Random initialisation that any shard can compute for itself.
//
//   kernels::normal_fill(weight, /*std=*/0.02, seed, /*stream=*/hash_of_name);
//
// Element i is a function of (seed, stream, i) alone: Philox words, for the normal distribution through
// the Box-Muller transform in double.

#include <ATen/core/Tensor.h>

namespace palimpsest::kernels {

/// Fills the contiguous floating-point `values` with N(0, std^2). Its first element is number
/// `first_element` of the whole tensor, so that a shard gets the values that the whole would have
/// there.
void normal_fill(
    const at::Tensor& values,
    double std,
    uint64_t seed,
    uint64_t stream,
    int64_t first_element = 0);

/// The same, evenly distributed over (-bound, bound).
void uniform_fill(
    const at::Tensor& values,
    double bound,
    uint64_t seed,
    uint64_t stream,
    int64_t first_element = 0);

} // namespace palimpsest::kernels
