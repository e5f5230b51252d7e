#include <palimpsest/core/data/epoch_order.h>

#include <palimpsest/core/base/error.h>

namespace palimpsest {

namespace {

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ULL;

constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

} // namespace

EpochOrder::EpochOrder(uint64_t seed, int64_t epoch, int64_t samples, bool shuffle)
    : samples_(samples), shuffle_(shuffle) {
  check(samples > 0 && epoch >= 0, "epoch {} of {} samples", epoch, samples);
  while ((uint64_t{1} << (2 * half_bits_)) < static_cast<uint64_t>(samples)) {
    ++half_bits_;
  }
  uint64_t state = mix(mix(seed + kGoldenGamma) + static_cast<uint64_t>(epoch));
  for (uint64_t& key : keys_) {
    state += kGoldenGamma;
    key = mix(state);
  }
}

uint64_t EpochOrder::permute(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (mix(right + key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t EpochOrder::operator[](int64_t position) const {
  check(position >= 0 && position < samples_, "position {} of {} samples", position, samples_);
  if (!shuffle_) {
    return position;
  }
  auto value = static_cast<uint64_t>(position);
  do {
    value = permute(value);
  } while (value >= static_cast<uint64_t>(samples_));
  return static_cast<int64_t>(value);
}

} // namespace palimpsest
