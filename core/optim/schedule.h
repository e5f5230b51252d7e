#pragma once

// The learning rate as a pure function of the optimizer step.
//
//   const LearningRateSchedule schedule({.name = "cosine", .total_steps = 100, .warmup_steps = 10, .min_ratio = 0.1});
//   schedule.factor(0);     // 0: the first update of a warm-up
//   schedule.factor(10);    // 1
//   schedule.factor(55);    // 0.55
//   schedule.factor(100);   // 0.1, and so for ever after
//
// The index is the number of updates made before: the first update uses factor(0), update n
// (counted from 1) uses factor(n - 1). It counts neither micro-batches, ranks nor skipped steps.
// This is how transformers counts, whose values these are (optimization.py of transformers 5:
// get_constant_, get_linear_, get_cosine_with_min_lr_schedule_with_warmup and get_wsd_schedule),
// but for two things: linear takes a floor too, and nothing rises again after the last step.

#include <cstdint>
#include <optional>
#include <string>

namespace palimpsest {

struct ScheduleSettings {
  std::string name = "constant"; ///< constant, linear, cosine or wsd
  int64_t total_steps = 1; ///< updates of the whole run
  std::optional<int64_t> warmup_steps =
      std::nullopt; ///< updates in which the rate rises; wins over warmup_ratio
  double warmup_ratio = 0; ///< the same as a share of total_steps, rounded up
  double min_ratio = 0; ///< floor, as a share of the peak; constant has none
  double decay_ratio =
      0.1; ///< wsd: share of total_steps in which the rate falls at the end, rounded up
  std::string decay = "cosine"; ///< wsd: course of that fall: linear, cosine or 1-sqrt
};

class LearningRateSchedule {
 public:
  /// UserError naming the keys of `scheduler` and what was given: an unknown name, a warm-up (and
  /// wsd's decay) longer than the run, a ratio outside [0, 1], a floor where the name has none.
  explicit LearningRateSchedule(ScheduleSettings settings);

  /// What multiplies the peak learning rate after `index` >= 0 updates, in [0, 1]. A warm-up of w
  /// updates is index / w; wsd begins it at the floor. Past total_steps: the last value.
  double factor(int64_t index) const;

  int64_t warmup_steps() const {
    return warmup_;
  }
  /// wsd: updates from the start of the decay to its end; 0 for the others.
  int64_t decay_steps() const {
    return decay_;
  }

 private:
  ScheduleSettings settings_;
  double (*course_)(double progress); // from 1 to 0 while progress goes from 0 to 1
  int64_t warmup_ = 0;
  int64_t decay_ = 0;
};

} // namespace palimpsest
