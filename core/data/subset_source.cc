#include <palimpsest/core/data/subset_source.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/epoch_order.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace palimpsest {

std::vector<int64_t> hold_out(int64_t samples, double fraction, uint64_t seed) {
  check(samples > 1 && fraction > 0 && fraction < 1, "{} of {} samples", fraction, samples);
  const int64_t count =
      std::clamp<int64_t>(std::llround(fraction * static_cast<double>(samples)), 1, samples - 1);
  // Of its own: the first epoch's order would put the held-out samples in a row.
  constexpr uint64_t kPurpose = 0x76616c6964617465ULL;
  const EpochOrder order(seed ^ kPurpose, /*epoch=*/0, samples, /*shuffle=*/true);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < count; ++i) {
    chosen.push_back(order[i]);
  }
  std::ranges::sort(chosen);
  return chosen;
}

SubsetSource::SubsetSource(
    std::shared_ptr<const SampleSource> source,
    std::vector<int64_t> chosen,
    bool all_but)
    : WrappedSource(std::move(source)), chosen_(std::move(chosen)), all_but_(all_but) {
  check(std::ranges::is_sorted(chosen_), "chosen samples in order");
}

int64_t SubsetSource::size() const {
  return all_but_ ? source_->size() - std::ssize(chosen_) : std::ssize(chosen_);
}

int64_t SubsetSource::original(int64_t sample) const {
  check(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  if (!all_but_) {
    return chosen_[static_cast<size_t>(sample)];
  }
  // chosen_[i] - i samples that are kept lie before chosen_[i].
  size_t before = 0;
  size_t end = chosen_.size();
  while (before < end) {
    const size_t middle = (before + end) / 2;
    if (chosen_[middle] - static_cast<int64_t>(middle) <= sample) {
      before = middle + 1;
    } else {
      end = middle;
    }
  }
  return sample + static_cast<int64_t>(before);
}

} // namespace palimpsest
