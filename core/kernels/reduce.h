#pragma once

// Norm contributions and finiteness of flat buffers, in a form that does not change with how a
// buffer is cut.
//
//   std::vector<double> sums(kernels::chunk_count(grad.numel()));
//   kernels::chunk_reduce(grad, kernels::ChunkReduction::kSumOfSquares, sums);
//   // fold the sums in order, in double
//
// A chunk is 4,096 elements counted from the tensor's start. Inside one the order of additions is
// fixed, so a chunk's value does not depend on threads or on which rank holds it, as long as shards
// are cut at multiples of a chunk.

#include <ATen/core/Tensor.h>

#include <span>

namespace palimpsest::kernels {

inline constexpr int64_t kReduceChunk = 4096;

/// Chunks of a buffer of `elements`; the last one may be short.
constexpr int64_t chunk_count(int64_t elements) {
  return (elements + kReduceChunk - 1) / kReduceChunk;
}

enum class ChunkReduction {
  kSumOfSquares,
  kSumOfAbs,
  kMaxAbs, ///< NaN where the chunk holds one
};

/// Reduces each chunk of the contiguous `values` (any shape, fp32 or bf16 fast) in double into
/// `chunks`, which must have chunk_count(numel) entries.
void chunk_reduce(const at::Tensor& values, ChunkReduction reduction, std::span<double> chunks);

/// True where `values` holds neither infinity nor NaN.
bool all_finite(const at::Tensor& values);

} // namespace palimpsest::kernels
