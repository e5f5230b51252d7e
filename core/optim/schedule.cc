#include <palimpsest/core/optim/schedule.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>

namespace palimpsest {

namespace {

using Course = double (*)(double progress);

double constant(double /*progress*/) {
  return 1;
}
double linear(double progress) {
  return 1 - progress;
}
double cosine(double progress) {
  return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}
double one_minus_sqrt(double progress) {
  return 1 - std::sqrt(progress);
}

Course decay_course(std::string_view decay) {
  if (decay == "linear") {
    return linear;
  }
  if (decay == "cosine") {
    return cosine;
  }
  if (decay == "1-sqrt") {
    return one_minus_sqrt;
  }
  throw UserError("scheduler.decay: \"{}\" is unknown; known are linear, cosine, 1-sqrt", decay);
}

Course course_of(const ScheduleSettings& settings) {
  if (settings.name == "constant") {
    return constant;
  }
  if (settings.name == "linear") {
    return linear;
  }
  if (settings.name == "cosine") {
    return cosine;
  }
  if (settings.name == "wsd") {
    return decay_course(settings.decay);
  }
  throw UserError(
      "scheduler.name: \"{}\" is unknown; known are constant, linear, cosine, wsd", settings.name);
}

void check_ratio(std::string_view key, double ratio) {
  if (!(ratio >= 0 && ratio <= 1)) {
    throw UserError("scheduler.{}: {} is not allowed; give a number from 0 to 1", key, ratio);
  }
}

/// A share of the run, rounded up; 0.07 of 100 is 7 although the product exceeds it by an ulp.
int64_t share_of(int64_t steps, double ratio) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(steps) * ratio * (1 - 1e-12)));
}

} // namespace

LearningRateSchedule::LearningRateSchedule(ScheduleSettings settings)
    : settings_(std::move(settings)), course_(course_of(settings_)) {
  const int64_t total = settings_.total_steps;
  check(total >= 1, "a schedule of {} steps", total);
  check_ratio("warmup_ratio", settings_.warmup_ratio);
  check_ratio("min_ratio", settings_.min_ratio);
  check_ratio("decay_ratio", settings_.decay_ratio);
  if (settings_.name == "constant" && settings_.min_ratio != 0) {
    throw UserError(
        "scheduler.min_ratio: {} has no meaning for the constant schedule; leave it out or set "
        "scheduler.name to linear, cosine or wsd",
        settings_.min_ratio);
  }
  warmup_ = settings_.warmup_steps.value_or(share_of(total, settings_.warmup_ratio));
  if (warmup_ < 0 || warmup_ > total) {
    throw UserError(
        "scheduler.warmup_steps: {} is not allowed in a run of {}; give 0 to {}",
        warmup_,
        counted(total, "step"),
        total);
  }
  if (settings_.name == "wsd") {
    decay_ = share_of(total, settings_.decay_ratio);
    if (warmup_ + decay_ > total) {
      throw UserError(
          "scheduler: a warm-up of {} and a decay of {} (scheduler.decay_ratio {}) exceed the "
          "run's {}; shorten one of them",
          counted(warmup_, "step"),
          decay_,
          settings_.decay_ratio,
          counted(total, "step"));
    }
  }
}

double LearningRateSchedule::factor(int64_t index) const {
  check(index >= 0, "learning rate of step {}", index);
  const bool wsd = settings_.name == "wsd";
  const double floor = settings_.min_ratio;
  if (index < warmup_) {
    const double risen = static_cast<double>(index) / static_cast<double>(warmup_);
    return wsd ? risen * (1 - floor) + floor : risen;
  }
  const int64_t total = settings_.total_steps;
  const int64_t start = wsd ? total - decay_ : warmup_;
  const auto length = static_cast<double>(std::max<int64_t>(1, total - start));
  const double progress = std::clamp(static_cast<double>(index - start) / length, 0.0, 1.0);
  return course_(progress) * (1 - floor) + floor;
}

} // namespace palimpsest
