#pragma once

// How a unit's elements are cut over a group of ranks: the one place that knows.
//
//   const UnitLayout layout = cut_unit(10'000, 2);       // shards of 8,192 elements, 16,384 in all
//   layout.range(1);                                     // [8192, 10000): this rank's own elements
//
// Shards are equal, so that collectives are; their borders are multiples of a chunk from the unit's
// start, so that a chunk's sum of squares does not depend on the cut. What lies beyond the unit's
// elements is padding, zero for ever. A rank may own nothing but padding.

#include <algorithm>
#include <cstdint>

namespace palimpsest {

/// Elements that no border cuts: the chunk of the gradient norm.
inline constexpr int64_t kShardChunk = 4096;

struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const ElementRange&) const = default;
  int64_t size() const {
    return end - begin;
  }
};

struct UnitLayout {
  int64_t elements = 0; ///< without padding
  int64_t shard = 0; ///< elements of each rank's part, padding included
  int ranks = 1;

  bool operator==(const UnitLayout&) const = default;
  /// Elements of the whole buffer, padding included.
  int64_t whole() const {
    return shard * ranks;
  }
  /// What a rank owns, without padding; empty where only padding is left for it.
  ElementRange range(int rank) const {
    return {std::min(elements, rank * shard), std::min(elements, (rank + 1) * shard)};
  }
};

/// A group of one needs no padding. `pieces`: each shard can be cut into so many equal parts with
/// borders of the same kind (a shard's replicas own one each where sums are reproducible).
constexpr UnitLayout cut_unit(int64_t elements, int ranks, int pieces = 1) {
  const auto parts = static_cast<int64_t>(ranks) * pieces;
  if (parts == 1) {
    return {elements, elements, 1};
  }
  const int64_t chunks = (elements + kShardChunk - 1) / kShardChunk;
  return {elements, (chunks + parts - 1) / parts * kShardChunk * pieces, ranks};
}

} // namespace palimpsest
