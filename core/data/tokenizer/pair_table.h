#pragma once

// Pairs of tokens to their merges: a hash table that is built once and asked billions of times.
//
//   PairTable table(merges.size());
//   table.set(left, right, {.rank = 0, .id = 300});
//   table.find(left, right).rank;                    // PairTable::kNoMerge where there is none

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace palimpsest {

class PairTable {
 public:
  static constexpr int32_t kNoMerge = std::numeric_limits<int32_t>::max();

  struct Merge {
    int32_t rank = kNoMerge; ///< lower ones first
    int32_t id = -1; ///< of the merged token
  };

  /// Room for `count` pairs.
  explicit PairTable(size_t count = 0)
      : slots_(std::bit_ceil(2 * count + 1)), shift_(64 - std::countr_zero(slots_.size())) {}

  /// Ids are not negative. The last merge set for a pair is the one that counts.
  void set(int32_t left, int32_t right, Merge merge) {
    size_t at = home(key(left, right));
    while (slots_[at].key != kFree && slots_[at].key != key(left, right)) {
      at = (at + 1) & (slots_.size() - 1);
    }
    slots_[at] = {key(left, right), merge};
  }

  Merge find(int32_t left, int32_t right) const {
    const uint64_t wanted = key(left, right);
    for (size_t at = home(wanted);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].key == wanted) {
        return slots_[at].merge;
      } else if (slots_[at].key == kFree) {
        return {};
      }
    }
  }

 private:
  static constexpr uint64_t kFree = std::numeric_limits<uint64_t>::max();
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };

  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t home(uint64_t wanted) const {
    constexpr uint64_t kGolden = 0x9e3779b97f4a7c15; // Fibonacci hashing
    return shift_ == 64 ? 0 : (wanted ^ wanted >> 32) * kGolden >> shift_;
  }

  std::vector<Slot> slots_;
  int shift_;
};

} // namespace palimpsest
