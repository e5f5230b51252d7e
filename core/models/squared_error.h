#pragma once

// The loss of a regression: the sum of squared errors over the target elements.
//
//   SquaredErrorBlock loss;
//   LossResult result = loss.forward({{prediction}}, /*gradient=*/true, context);      // prediction [B,D]
//
// Reads the micro-batch's labels, float [B,D]; its targets are the elements, so the step's loss is
// the mean squared error. The sum is in double.

#include <palimpsest/core/contracts/block.h>

#include <string>

namespace palimpsest {

class SquaredErrorBlock : public TerminalBlock {
 public:
  LossResult forward(TensorSpan inputs, bool gradient, const BlockContext& context) override;
  double forward_flops(TensorSpan inputs) const override;
  std::string kind() const override;
};

} // namespace palimpsest
