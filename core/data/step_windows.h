#pragma once

// Which positions of which epoch an optimizer step consumes, and how they are cut into
// micro-batches.
//
//   const StepWindows windows(/*samples=*/100, /*global_batch_size=*/8, /*drop_last=*/false);
//   windows.per_epoch();           // 13: twelve full ones and one of 4
//   windows.at(12);                // {.epoch = 0, .begin = 96, .size = 4}
//   split_evenly(11, 3);           // {4, 4, 3}

#include <cstdint>
#include <vector>

namespace palimpsest {

/// Consecutive positions [begin, begin + size) of an epoch.
struct StepWindow {
  int64_t epoch = 0;
  int64_t begin = 0;
  int64_t size = 0;
};

/// No window spans two epochs: an epoch that the batch does not divide ends with a smaller one, or,
/// with drop_last, leaves its rest out.
class StepWindows {
 public:
  /// UserError where drop_last leaves nothing of an epoch.
  StepWindows(int64_t samples, int64_t global_batch_size, bool drop_last);

  /// Optimizer steps of one epoch.
  int64_t per_epoch() const {
    return per_epoch_;
  }
  /// Samples that an epoch's last batch has, or that drop_last leaves out; 0 where the batch
  /// divides the samples.
  int64_t rest() const {
    return samples_ % global_batch_size_;
  }
  StepWindow at(int64_t step) const;

 private:
  int64_t samples_;
  int64_t global_batch_size_;
  int64_t per_epoch_;
};

/// `parts` sizes that differ by at most one, larger ones first. Parts beyond `samples` are empty.
std::vector<int64_t> split_evenly(int64_t samples, int64_t parts);

} // namespace palimpsest
