#include <palimpsest/core/data/step_windows.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>

namespace palimpsest {

StepWindows::StepWindows(int64_t samples, int64_t global_batch_size, bool drop_last)
    : samples_(samples), global_batch_size_(global_batch_size) {
  check(samples > 0 && global_batch_size > 0, "batches of {} of {}", global_batch_size, samples);
  per_epoch_ =
      samples / global_batch_size + (!drop_last && samples % global_batch_size > 0 ? 1 : 0);
  if (per_epoch_ == 0) {
    throw UserError(
        "training.global_batch_size: a batch of {} does not fit the {} samples, and data.drop_last "
        "leaves an incomplete one out; make the batch smaller or drop_last false",
        global_batch_size,
        samples);
  }
}

StepWindow StepWindows::at(int64_t step) const {
  check(step >= 0, "step {}", step);
  const int64_t begin = step % per_epoch_ * global_batch_size_;
  return {step / per_epoch_, begin, std::min(global_batch_size_, samples_ - begin)};
}

std::vector<int64_t> split_evenly(int64_t samples, int64_t parts) {
  check(samples >= 0 && parts > 0, "{} samples in {} parts", samples, parts);
  std::vector<int64_t> sizes(static_cast<size_t>(parts), samples / parts);
  std::fill_n(sizes.begin(), samples % parts, samples / parts + 1);
  return sizes;
}

} // namespace palimpsest
