#pragma once

// A linear layer and the activation before it, the block of an MLP chain: activation(x) w^T + b.
//
//   LinearBlock block({.weight = refs[0], .bias = refs[1], .activation = kernels::Activation::kRelu});
//   ForwardResult result = block.forward({{x}}, {TapeMode::kFull, {0}}, context);      // x [B,K] -> [B,N]
//
// The activation comes first, so that what blocks pass on is what all else follows from: x, a
// declared saved input, is all that a lean tape needs. A full tape owns activation(x) besides.
// Nothing asked for (yields = {}) skips the product.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/kernels/activation.h>
#include <palimpsest/core/models/param_ref.h>

#include <optional>
#include <string>

namespace palimpsest {

struct LinearLayer {
  ParamRef weight; // [N,K]
  ParamRef bias; // [N], may be absent
  std::optional<kernels::Activation> activation; // of x
};

class LinearBlock : public Block {
 public:
  explicit LinearBlock(LinearLayer layer) : layer_(layer) {}

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) override;
  double forward_flops(TensorSpan inputs) const override;
  double value_flops(TensorSpan inputs) const override;
  double backward_flops(TensorSpan inputs) const override;
  std::string kind() const override;

 private:
  LinearLayer layer_;
};

} // namespace palimpsest
