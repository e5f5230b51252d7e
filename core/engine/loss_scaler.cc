#include <palimpsest/core/engine/loss_scaler.h>

#include <algorithm>
#include <limits>

namespace palimpsest {

LossScaler::LossScaler(const LossScaling& settings)
    : LossScaler(
          settings,
          {.scale = settings.initial, .good_steps = 0, .hysteresis_left = settings.hysteresis}) {}

void LossScaler::update(bool finite) {
  if (settings_.fixed) {
    return;
  }
  if (!finite) {
    state_.good_steps = 0;
    if (--state_.hysteresis_left > 0) {
      return;
    }
    exhausted_ = state_.scale <= settings_.minimum;
    state_.scale = std::max(settings_.minimum, state_.scale * settings_.backoff_factor);
    return;
  }
  if (++state_.good_steps == settings_.growth_interval) {
    state_.good_steps = 0;
    state_.hysteresis_left = settings_.hysteresis;
    const double grown = state_.scale * settings_.growth_factor;
    if (grown <= double{std::numeric_limits<float>::max()}) {
      state_.scale = grown;
    }
  }
}

} // namespace palimpsest
