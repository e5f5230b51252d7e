#pragma once

// A linear layer with an activation, the block of an MLP chain: activation(x w^T + b).
//
//   LinearBlock block({.weight = refs[0], .bias = refs[1], .activation = kernels::Activation::kRelu});
//   ForwardResult result = block.forward({{x}}, {TapeMode::kFull, {0}}, context);      // x [B,K] -> [B,N]
//
// x is a declared saved input; the tape, lean or full, owns the activation's input (nothing where
// there is none).

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/kernels/activation.h>
#include <palimpsest/core/models/param_ref.h>

#include <optional>
#include <string>

namespace palimpsest {

struct LinearLayer {
  ParamRef weight; // [N,K]
  ParamRef bias; // [N], may be absent
  std::optional<kernels::Activation> activation;
};

class LinearBlock : public Block {
 public:
  explicit LinearBlock(LinearLayer layer) : layer_(layer) {}

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) override;
  double forward_flops(TensorSpan inputs) const override;
  std::string kind() const override;

 private:
  LinearLayer layer_;
};

} // namespace palimpsest
