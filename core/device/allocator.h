#pragma once

// The CPU allocator under LibTorch's tensors. Fresh pages are what makes steps slow (33 MiB fresh
// and filled take ten times as long as reused), so freed memory is kept, in huge pages, and handed
// out again; and every block is charged to the MemoryContext of the thread that asks for it.
//
//   install_cpu_allocator();                // once, before the first tensor that shall count
//   CpuAllocator::instance().set_cache_limit(int64_t{1} << 30);
//   ...
//   CpuAllocator::instance().trim();        // between phases: what is free goes back
//
// The process's RSS is at most its baseline + the live bytes of all contexts + overhead_bytes() +
// cached_bytes().

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace palimpsest {

/// Makes CpuAllocator LibTorch's allocator for the CPU. Later calls do nothing.
void install_cpu_allocator();

class CpuAllocator final : public c10::Allocator {
 public:
  /// The only one; never destroyed, since tensors of static lifetime are freed through it.
  static CpuAllocator& instance();

  /// `bytes` of uninitialised memory, aligned to 64 bytes; null for 0. Throws c10::OutOfMemoryError
  /// when the context's limit or the system refuses. Reserves at most 1/8 more than asked for, from
  /// 1 KiB on.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, size_t bytes) const override;

  /// Bytes resident for blocks of 16 KiB and more that no tensor asked for: freed and kept, or lost
  /// to rounding.
  int64_t cached_bytes() const;
  /// Caps cached_bytes(), to within the partly used huge pages; trims at once. Unlimited at first.
  void set_cache_limit(int64_t bytes);
  /// Returns all free huge pages to the system; what stays cached shares a huge page with live
  /// blocks.
  void trim();

 private:
  CpuAllocator() = default;
};

} // namespace palimpsest
