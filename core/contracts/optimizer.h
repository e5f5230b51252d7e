#pragma once

// The update rule. It cannot tell a shard from a whole unit.
//
//   optimizer.step(store.shard(unit), {.learning_rate = 2e-5, .gradient_factor = clip, .step = 12});

#include <palimpsest/core/contracts/param_store.h>

#include <cstdint>
#include <vector>

namespace palimpsest {

struct UpdateScalars {
  double learning_rate = 0;
  double gradient_factor = 1; // clipping and unscaling in one
  int64_t step = 1; // updates so far, this one included
  uint64_t seed = 0; // of the run: of stochastic rounding
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual int moment_count() const = 0;
  /// Updates parameters (or master and parameters) and moments in place. bf16 ones that have no fp32
  /// master are rounded stochastically.
  virtual void step(ParamShard& shard, const UpdateScalars& scalars) const = 0;
};

/// The global norm of a step's gradients, whatever their layout: partial results of chunks counted
/// from a unit's start are folded in (unit, chunk) order.
class GradientNorm {
 public:
  virtual ~GradientNorm() = default;
  /// Partial results of one flat gradient, fp32 or bf16, one per chunk. Not finite where the
  /// gradient is not.
  virtual std::vector<double> measure(const at::Tensor& gradient) const = 0;
  /// The norm from all units' partial results in order.
  virtual double fold(const std::vector<double>& parts) const = 0;
};

} // namespace palimpsest
