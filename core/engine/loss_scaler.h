#pragma once

// Loss scaling: fp16 gradients below 6e-8 are zero and above 65,504 infinite, so the loss is scaled
// up, and the scale adapts to what overflows (Micikevicius et al. 2018, arXiv:1710.03740).
//
//   LossScaler scaler({.initial = 65536});
//   inputs.gradient_scale = scaler.scale();
//   scaler.update(outcome.finite);              // once a step, when it commits
//
// As torch.amp.GradScaler counts, with the hysteresis of Megatron-LM's DynamicGradScaler and
// DeepSpeed's error at the floor.

#include <cstdint>
#include <optional>

namespace palimpsest {

struct LossScaling {
  std::optional<double> fixed = {}; ///< this scale always
  double initial = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000; ///< steps in a row without overflow before the scale grows
  int64_t hysteresis = 1; ///< overflows before the scale shrinks, counted anew after each growth
  double minimum = 1;
};

/// What a checkpoint keeps.
struct LossScale {
  double scale = 1;
  int64_t good_steps = 0; ///< in a row, since the last growth or overflow
  int64_t hysteresis_left = 1; ///< overflows until the scale shrinks; not above 0: each shrinks it

  bool operator==(const LossScale&) const = default;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScaling& settings);
  /// Goes on from a checkpoint.
  LossScaler(const LossScaling& settings, const LossScale& state)
      : settings_(settings), state_(state) {}

  double scale() const {
    return settings_.fixed.value_or(state_.scale);
  }
  const LossScale& state() const {
    return state_;
  }

  /// After a step.
  void update(bool finite);
  /// Whether an overflow would have shrunk a scale at its minimum: there is no way on.
  bool exhausted() const {
    return exhausted_;
  }

 private:
  LossScaling settings_;
  LossScale state_;
  bool exhausted_ = false;
};

} // namespace palimpsest
