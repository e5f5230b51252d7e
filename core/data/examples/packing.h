#pragma once

// Which examples share a row.
//
//   const Packs packs = pack({300, 200, 500, 12}, /*capacity=*/512);    // {0, 1, 3} and {2}

#include <cstdint>
#include <span>
#include <vector>

namespace palimpsest {

/// Pack k holds items[ends[k - 1]] ... items[ends[k] - 1].
struct Packs {
  std::vector<int64_t> items;
  std::vector<int64_t> ends;
};

/// Best fit decreasing: each length, the longest first, goes where it leaves the least room
/// (Johnson, "Near-optimal bin packing algorithms", 1973; for training data Ding et al., "Fewer
/// truncations improve language modeling", 2024). Lengths are 1 ... capacity. Packs are ordered by
/// their first item and hold their items in order. O(n log n).
Packs pack(std::span<const int32_t> lengths, int64_t capacity);

} // namespace palimpsest
