#pragma once

// Pre-norm gated feed-forward of the LLaMA family with its residual: x +
// dropout(down(act(gate(norm(x))) * up(norm(x)))).
//
//   MlpBlock block(shape, {.norm = refs[0], .gate_up = refs[1], .down = refs[3]});
//   ForwardResult result = block.forward({{x}}, {TapeMode::kLean, {0}}, context);      // x [B,T,H] -> [B,T,H]
//
// Forward and backward are written by hand on the kernels. x is a declared saved input. A full tape
// owns the normed input, gate and up, and their gated product; a lean one owns gate and up and
// redoes the others, with the same bits. Nothing asked for (yields = {}) skips down_proj.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/kernels/activation.h>
#include <palimpsest/core/models/param_ref.h>

#include <cstdint>
#include <string>

namespace palimpsest {

struct MlpShape {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  double rms_norm_eps = 1e-6;
  kernels::Activation activation = kernels::Activation::kSilu;
  double residual_dropout = 0; // on what is added to x
  uint32_t block = 0; // the block's number, for its randomness
};

struct MlpWeights {
  ParamRef norm; // [H]
  ParamRef gate_up; // [2I, H], gate first
  ParamRef gate_up_bias; // may be absent
  ParamRef down; // [H, I]
  ParamRef down_bias; // may be absent
};

class MlpBlock : public Block {
 public:
  MlpBlock(MlpShape shape, MlpWeights weights) : shape_(shape), weights_(weights) {}

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) override;
  double forward_flops(TensorSpan inputs) const override;
  double value_flops(TensorSpan inputs) const override;
  std::string kind() const override;

 private:
  class MlpTape;

  MlpShape shape_;
  MlpWeights weights_;
};

} // namespace palimpsest
