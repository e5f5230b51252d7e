#pragma once

// Pre-norm self-attention of the LLaMA family with its residual: x +
// dropout(o_proj(attention(rotary(qkv(norm(x)))))).
//
//   AttentionBlock block(shape, {.norm = refs[0], .qkv = refs[1], .output = refs[3]}, rotary);
//   ForwardResult result = block.forward({{x}}, {TapeMode::kLean, {0}}, context);      // x [B,T,H] -> [B,T,H]
//
// Forward and backward are written by hand on the kernels. x is a declared saved input. A full tape
// owns the normed input, q, k and v after the rotation, the attention's output and its logsumexp; a
// lean one redoes the norm, with the same bits. Nothing asked for (yields = {}) skips o_proj.

#include <palimpsest/core/contracts/block.h>
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
  double rms_norm_eps = 1e-6;
  double attention_dropout = 0; // on the probabilities
  double residual_dropout = 0; // on what is added to x
  uint32_t block = 0; // the block's number, for its randomness
};

struct AttentionWeights {
  ParamRef norm; // [H]
  ParamRef qkv; // [(heads + 2 kv_heads) * head_dim, H]
  ParamRef qkv_bias; // may be absent
  ParamRef output; // [H, heads * head_dim]
  ParamRef output_bias; // may be absent
};

class AttentionBlock : public Block {
 public:
  AttentionBlock(
      AttentionShape shape,
      AttentionWeights weights,
      std::shared_ptr<RotaryCache> rotary);

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) override;
  /// Products of the lower triangle only.
  double forward_flops(TensorSpan inputs) const override;
  double value_flops(TensorSpan inputs) const override;
  std::string kind() const override;

 private:
  class AttentionTape;

  AttentionShape shape_;
  AttentionWeights weights_;
  std::shared_ptr<RotaryCache> rotary_;
};

} // namespace palimpsest
