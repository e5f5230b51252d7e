#pragma once

// Dropout whose mask is a function of where an element stands, not of when it is drawn.
//
//   kernels::DropoutKey key{.seed = 42, .step = 17, .block = 3, .call = 0};
//   at::Tensor y = kernels::dropout_forward(x, 0.1, key, rows);      // x [B,T,F]
//   at::Tensor dx = kernels::dropout_backward(dy, 0.1, key, rows);   // the same mask, recomputed
//
// An element is kept or not by one Philox word of (seed, step, block, call, global row, position,
// feature). So a mask depends on no batch split, padding or thread count, needs no storage, and a
// recomputation repeats it.

#include <ATen/core/Tensor.h>

namespace palimpsest::kernels {

/// Names one use of dropout in a run. `call` tells the uses inside one block apart.
struct DropoutKey {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t block = 0;
  uint32_t call = 0;
};

/// x / (1-p) where kept, 0 where dropped (with probability p in [0,1)). x [B,T,F], rows int64 [B]
/// on the CPU, each sequence's row number in the whole step. p = 0 returns x itself.
at::Tensor dropout_forward(
    const at::Tensor& x,
    double p,
    const DropoutKey& key,
    const at::Tensor& rows);

/// The gradient: dy [B,T,F] under the same mask and factor.
at::Tensor dropout_backward(
    const at::Tensor& dy,
    double p,
    const DropoutKey& key,
    const at::Tensor& rows);

/// The mask of dropout_forward as factors, 0 or 1/(1-p): fp32 [B,T,F] on the CPU.
at::Tensor dropout_factors(
    int64_t positions,
    int64_t features,
    double p,
    const DropoutKey& key,
    const at::Tensor& rows);

/// A rectangle of one head's attention probabilities.
struct AttentionTile {
  int64_t row = 0; ///< the sequence's row number in the step, below 2^48
  int64_t head = 0; ///< below 2^16
  int64_t first_query = 0;
  int64_t first_key = 0;
  int64_t queries = 0;
  int64_t keys = 0;
};

/// The factors, 0 or 1/(1-p), by (row, head, query, key) for a tile's probabilities, written to
/// `factors`: fp32 [queries, keys] on the CPU. Drawn apart from dropout_forward's under the same
/// key.
void attention_dropout_factors(
    float* factors,
    const AttentionTile& tile,
    double p,
    const DropoutKey& key);

} // namespace palimpsest::kernels
