#pragma once

// Stochastic gradient descent with momentum, as torch.optim.SGD computes it with dampening 0 and
// without Nesterov.
//
//   const Sgd optimizer(0.9);
//   optimizer.step(store.shard(unit), {.learning_rate = 0.1, .gradient_factor = clip, .step = 12});

#include <palimpsest/core/contracts/optimizer.h>

namespace palimpsest {

class Sgd final : public Optimizer {
 public:
  explicit Sgd(double momentum) : momentum_(momentum) {}

  /// The momentum buffer; none at momentum 0.
  int moment_count() const override {
    return momentum_ == 0 ? 0 : 1;
  }
  /// As AdamW::step. Weight decay is added to the gradient.
  void step(ParamShard& shard, const UpdateScalars& scalars) const override;

 private:
  double momentum_;
};

} // namespace palimpsest
