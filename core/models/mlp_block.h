#pragma once

// Pre-norm feed-forward with its residual: x + dropout(down(act(gate(norm(x))) * up(norm(x)))), or
// without gate x + dropout(down(act(inner(norm(x))))).
//
//   MlpBlock block(shape, {.norm = norm, .inner = gate_up, .down = down});      // linear.h
//   ForwardResult result = block.forward({{x}}, {TapeMode::kLean, {0}}, context);      // x [B,T,H] -> [B,T,H]
//
// Forward and backward are written by hand on the kernels. x is a declared saved input. A full tape
// owns the normed input, the inner layers' outputs and what the activation makes of them; a lean
// one owns the inner outputs and redoes the others, with the same bits. What only gradients of
// frozen parameters would need is not owned. Nothing asked for (yields = {}) skips the down projection.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/kernels/activation.h>
#include <palimpsest/core/models/linear.h>
#include <palimpsest/core/models/norm.h>

#include <cstdint>
#include <string>
#include <utility>

namespace palimpsest {

struct MlpShape {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  bool gated = true;
  kernels::Activation activation = kernels::Activation::kSilu;
  double residual_dropout = 0; // on what is added to x
  uint32_t block = 0; // the block's number, for its randomness
};

struct MlpWeights {
  Norm norm;
  Linear inner; // [2I, H], gate first; [I, H] without a gate
  Linear down; // [H, I]
};

class MlpBlock : public Block {
 public:
  MlpBlock(MlpShape shape, MlpWeights weights) : shape_(shape), weights_(std::move(weights)) {}

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) override;
  double forward_flops(TensorSpan inputs) const override;
  double value_flops(TensorSpan inputs) const override;
  double backward_flops(TensorSpan inputs) const override;
  std::string kind() const override;

 private:
  class MlpTape;

  MlpShape shape_;
  MlpWeights weights_;
};

} // namespace palimpsest
