#pragma once

// The order of the samples in an epoch, as a pure function: no state, no memory, equal on every
// machine.
//
//   const EpochOrder order(/*seed=*/42, /*epoch=*/3, /*samples=*/1000, /*shuffle=*/true);
//   order[0];    // the first sample of epoch 3

#include <array>
#include <cstdint>

namespace palimpsest {

/// Each sample 0 ... samples - 1 stands at exactly one position.
///
/// The shuffle is a Feistel network of eight rounds over the next power of four (at least 256),
/// walked along its cycles until it falls below `samples` (Black and Rogaway, "Ciphers with
/// arbitrary finite domains", 2002); its round function is the finaliser of SplitMix64 (Steele, Lea
/// and Flood, 2014) under keys drawn from (seed, epoch).
class EpochOrder {
 public:
  EpochOrder(uint64_t seed, int64_t epoch, int64_t samples, bool shuffle);

  /// The sample at `position`, 0 <= position < samples.
  int64_t operator[](int64_t position) const;

 private:
  static constexpr int kRounds = 8;

  uint64_t permute(uint64_t value) const;

  int64_t samples_;
  bool shuffle_;
  int half_bits_ = 4;
  std::array<uint64_t, kRounds> keys_{};
};

} // namespace palimpsest
