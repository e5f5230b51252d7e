#pragma once

// Large blocks out of huge pages, for reuse: best fit with coalescing over an address range as wide
// as needed. Addresses are plentiful, so only pages count: a huge page is resident from the first
// block that touches it until it is wholly free and given back. Best fit keeps that close to the
// peak of what is live, whatever the mix of sizes, where lists per size class would keep the sum of
// each class's peak; and where fragments still add up to more than an eighth of the peak, free huge
// pages are given back before new ones are touched.
//
//   PageArena arena;
//   void* block = arena.allocate(33 << 20);   // null when the system has no more
//   arena.free(block, 33 << 20);              // kept: the next allocation meets no page fault
//   arena.set_cache_limit(0);                  // given back

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <unordered_set>
#include <utility>

namespace palimpsest {

/// All methods may be called from any thread. The address range is never unmapped.
class PageArena {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;
  /// Blocks start at, and are rounded up to, multiples of this.
  static constexpr size_t kGranule = 1024;

  /// `bytes` >= 1 of memory, uninitialised; null when the system refuses.
  void* allocate(size_t bytes);
  /// `bytes` as given to allocate().
  void free(void* block, size_t bytes);

  /// Bytes of the huge pages that were touched and not given back.
  int64_t resident_bytes() const;
  /// The part of them that no block asked for.
  int64_t cached_bytes() const;
  /// Gives free huge pages back whenever more than `bytes` are cached, now too.
  void set_cache_limit(int64_t bytes);
  /// Gives all free huge pages back, and forgets the peak.
  void trim();

 private:
  bool grow(size_t bytes);
  void insert_free(uintptr_t begin, size_t bytes);
  void release(uintptr_t begin, size_t bytes, int64_t keep);
  void release_all(int64_t keep);
  int64_t cached() const {
    return static_cast<int64_t>(resident_.size() * kHugePage) - asked_;
  }

  mutable std::mutex mutex_;
  std::map<uintptr_t, size_t> free_by_address_; // no two are adjacent
  std::set<std::pair<size_t, uintptr_t>> free_by_size_; // the same ranges
  std::unordered_set<uintptr_t> resident_; // huge pages, by address / kHugePage
  int64_t asked_ = 0; // bytes of live blocks
  int64_t peak_ = 0; // the highest asked_
  int64_t cache_limit_ = std::numeric_limits<int64_t>::max();
};

} // namespace palimpsest
