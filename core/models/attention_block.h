#pragma once

// Pre-norm self-attention of a decoder with its residual: x +
// dropout(o_proj(attention(rotary(qkv(norm(x)))))).
//
//   AttentionBlock block(shape, {.norm = norm, .qkv = qkv, .output = output}, rotary);      // linear.h
//   ForwardResult result = block.forward({{x}}, {TapeMode::kLean, {0}}, context);      // x [B,T,H] -> [B,T,H]
//
// Forward and backward are written by hand on the kernels. x is a declared saved input. A full tape
// owns the normed input, q, k and v, the attention's output and its logsumexp; a lean one redoes the
// norm, with the same bits. q and k are owned after the rotation; where each head is normed before
// it, they are owned as they were, by a full tape also after both. What only gradients of
// frozen parameters would need is not owned. Nothing asked for (yields = {}) skips o_proj.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/models/block_support.h>
#include <palimpsest/core/models/kv_cache.h>
#include <palimpsest/core/models/linear.h>
#include <palimpsest/core/models/norm.h>
#include <palimpsest/core/models/rotary_cache.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

struct AttentionShape {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0; // how many keys a query sees, the last ones, its own among them; 0: all
  double attention_dropout = 0; // on the probabilities
  double residual_dropout = 0; // on what is added to x
  uint32_t block = 0; // the block's number, for its randomness
};

struct AttentionWeights {
  Norm norm;
  Linear qkv; // [(heads + 2 kv_heads) * head_dim, H]
  Norm q_norm; // of each head before the rotation; may be absent, with k_norm
  Norm k_norm;
  Linear output; // [H, heads * head_dim]
};

/// New tokens of sequences that are generated.
struct CacheStep {
  std::vector<LayerCache*> caches = {}; // of this block, one for each sequence
  std::vector<TokenPlace> places = {}; // of each row of x
  std::optional<kernels::RotaryTable> rotary = {}; // by row; made by the first block that rotates
};

class AttentionBlock : public Block {
 public:
  /// Without `rotary` q and k are not rotated.
  AttentionBlock(
      AttentionShape shape,
      AttentionWeights weights,
      std::shared_ptr<RotaryCache> rotary);

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) override;
  /// Products of what the causal mask and the window leave only.
  double forward_flops(TensorSpan inputs) const override;
  double value_flops(TensorSpan inputs) const override;
  double backward_flops(TensorSpan inputs) const override;
  std::string kind() const override;

  /// What the cache of a sequence of at most so many tokens is like.
  CacheShape cache_shape(at::ScalarType dtype, int64_t most) const;
  /// x [B,T,H] -> [B,T,H]: T new tokens of one sequence, or one of each of B. They go on where the
  /// caches end, and are appended to them.
  at::Tensor extend(const at::Tensor& x, CacheStep& step, const BlockContext& context) const;

 private:
  class AttentionTape;
  struct Turned;

  double score_flops(const at::Tensor& x) const;
  Turned turn(const at::Tensor& qkv, const at::Tensor& x, const BlockContext& context) const;
  Turned turn(
      const at::Tensor& qkv,
      const at::Tensor& x,
      const kernels::RotaryTable* table,
      const at::Tensor& positions) const;
  kernels::AttentionMask mask(const BlockContext& context) const {
    return {.causal = true, .window = shape_.window, .positions = positions_of(context)};
  }

  AttentionShape shape_;
  AttentionWeights weights_;
  std::shared_ptr<RotaryCache> rotary_;
};

} // namespace palimpsest
