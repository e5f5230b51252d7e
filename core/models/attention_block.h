#pragma once

// Pre-norm self-attention of a decoder with its residual: x +
// dropout(o_proj(attention(rotary(qkv(norm(x)))))).
//
//   AttentionBlock block(shape, {.norm = norm, .qkv = refs[1], .output = refs[3]}, rotary);
//   ForwardResult result = block.forward({{x}}, {TapeMode::kLean, {0}}, context);      // x [B,T,H] -> [B,T,H]
//
// Forward and backward are written by hand on the kernels. x is a declared saved input. A full tape
// owns the normed input, q, k and v, the attention's output and its logsumexp; a lean one redoes the
// norm, with the same bits. q and k are owned after the rotation; where each head is normed before
// it, they are owned as they were, by a full tape also after both. Nothing asked for (yields = {})
// skips o_proj.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/models/block_support.h>
#include <palimpsest/core/models/norm.h>
#include <palimpsest/core/models/param_ref.h>
#include <palimpsest/core/models/rotary_cache.h>

#include <cstdint>
#include <memory>
#include <string>

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
  ParamRef qkv; // [(heads + 2 kv_heads) * head_dim, H]
  ParamRef qkv_bias; // may be absent
  Norm q_norm; // of each head before the rotation; may be absent, with k_norm
  Norm k_norm;
  ParamRef output; // [H, heads * head_dim]
  ParamRef output_bias; // may be absent
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
  std::string kind() const override;

 private:
  class AttentionTape;
  struct Turned;

  Turned turn(const at::Tensor& qkv, const at::Tensor& x, const BlockContext& context) const;
  kernels::AttentionMask mask(const BlockContext& context) const {
    return {.causal = true, .window = shape_.window, .positions = positions_of(context)};
  }

  AttentionShape shape_;
  AttentionWeights weights_;
  std::shared_ptr<RotaryCache> rotary_;
};

} // namespace palimpsest
