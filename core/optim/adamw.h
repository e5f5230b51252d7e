#pragma once

// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019), as
// torch.optim.AdamW computes it.
//
//   const AdamW optimizer(0.9, 0.95, 1e-8);
//   optimizer.step(store.shard(unit), {.learning_rate = 2e-5, .gradient_factor = clip, .step = 12});

#include <palimpsest/core/contracts/optimizer.h>

namespace palimpsest {

class AdamW final : public Optimizer {
 public:
  AdamW(double beta1, double beta2, double eps) : beta1_(beta1), beta2_(beta2), eps_(eps) {}

  /// The running means of the gradient and of its square.
  int moment_count() const override {
    return 2;
  }
  /// Updates the fp32 master and refreshes the parameters from it, rounded to nearest; without a
  /// master the parameters themselves, rounded stochastically where they are bf16. bf16 moments are
  /// rounded stochastically.
  void step(ParamShard& shard, const UpdateScalars& scalars) const override;

 private:
  double beta1_;
  double beta2_;
  double eps_;
};

} // namespace palimpsest
