#include <palimpsest/core/data/mixture_order.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <cmath>

namespace palimpsest {

Mixture::Mixture(const std::vector<MixturePart>& parts) {
  check(!parts.empty(), "a mixture of nothing");
  int64_t first = 0;
  int64_t end = 0;
  for (const MixturePart& part : parts) {
    check(
        part.samples > 0 && part.weight > 0, "{} samples of weight {}", part.samples, part.weight);
    const int64_t taken =
        std::max<int64_t>(1, std::llround(part.weight * static_cast<double>(part.samples)));
    end += taken;
    parts_.push_back({part.samples, first, taken, end});
    first += part.samples;
  }
}

MixtureOrder::MixtureOrder(const Mixture& mixture, uint64_t seed, int64_t epoch, bool shuffle)
    : mixture_(mixture), seed_(seed), epoch_(epoch), shuffle_(shuffle),
      order_(seed, epoch, mixture.size(), shuffle) {}

int64_t MixtureOrder::operator[](int64_t position) const {
  const int64_t place = order_[position];
  const auto part = std::ranges::upper_bound(mixture_.parts_, place, {}, &Mixture::Part::end);
  const int64_t own = place - (part->end - part->taken);
  if (part->taken == part->samples) {
    return part->first + own;
  }
  const int64_t taken = epoch_ * part->taken + own; // of this source since the run's start
  const auto index = static_cast<uint64_t>(part - mixture_.parts_.begin());
  // Each round through a source has an order of its own.
  constexpr uint64_t kSources = 0x736f7572636573ULL;
  const EpochOrder round(
      seed_ ^ (kSources + index), taken / part->samples, part->samples, shuffle_);
  return part->first + round[taken % part->samples];
}

} // namespace palimpsest
