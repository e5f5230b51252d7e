#pragma once

// The counters behind a MemoryContext, shared by memory_context.cc and allocator.cc and nobody
// else.
//
//   Ledger::Tag tag = Ledger::of_this_thread();
//   tag.ledger->charge(bytes, tag.category);      // throws when the limit or the hook says so
//   tag.ledger->discharge(bytes, tag.category);   // later, on any thread

#include <palimpsest/core/device/memory_context.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>

namespace palimpsest {

/// Raises `maximum` to `value`.
inline void raise_to(std::atomic<int64_t>& maximum, int64_t value) {
  int64_t seen = maximum.load(std::memory_order_relaxed);
  while (seen < value && !maximum.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

class Ledger {
 public:
  struct Counter {
    std::atomic<int64_t> live = 0;
    std::atomic<int64_t> peak = 0;
    std::atomic<int64_t> allocations = 0;
  };
  struct Tag {
    Ledger* ledger;
    Category category;
  };

  explicit Ledger(std::string context) : name(std::move(context)) {}

  /// What an allocation of the calling thread is charged to.
  static Tag of_this_thread();

  /// Counts an allocation; throws, with nothing counted, what the hook throws or
  /// c10::OutOfMemoryError over the limit.
  void charge(int64_t bytes, Category as);
  void discharge(int64_t bytes, Category as);
  void move(int64_t bytes, Category from, Category to);
  /// Notes an allocation that was refused while `held` bytes were live.
  void note_refusal(int64_t bytes, Category as, int64_t held);
  std::optional<RefusedAllocation> take_refusal();
  Counter& operator[](Category as) {
    return by_category[static_cast<size_t>(as)];
  }

  const std::string name;
  std::array<Counter, kMemoryCategories.size()> by_category;
  std::atomic<int64_t> live = 0;
  std::atomic<int64_t> peak = 0;
  std::atomic<int64_t> interval_peak = 0;
  std::atomic<int64_t> limit = std::numeric_limits<int64_t>::max();
  std::atomic<Category> category = Category::kUnattributed;
  std::atomic<bool> closed = false; // its MemoryContext is gone
  std::atomic<bool> has_hook = false;
  AllocationHook hook;

 private:
  std::mutex refusal_mutex_;
  std::optional<RefusedAllocation> refusal_;
};

/// The counters that a block of the CPU allocator was charged to.
struct BlockOwner {
  Ledger* ledger;
  int64_t bytes;
  Category category;
};

/// The owner record of a block made by CpuAllocator, given its data pointer.
BlockOwner& owner_of(void* data);

} // namespace palimpsest
