#include <palimpsest/core/device/page_arena.h>

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace palimpsest {

namespace {

/// Address range taken from the system at once; costs no memory until touched.
constexpr size_t kRegion = size_t{64} << 20;

/// What may be resident beyond the peak of live bytes: an eighth of it, and enough not to matter
/// for a small program.
constexpr int64_t kSpareShare = 8;
constexpr int64_t kSpareAtLeast = 8 * PageArena::kHugePage;

constexpr size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// `bytes` (a multiple of the huge page) of fresh addresses, aligned to it; 0 when the system
/// refuses.
uintptr_t map_region(size_t bytes) {
  constexpr size_t kPage = PageArena::kHugePage;
  void* const mapped =
      mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return 0;
  }
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = round_up(begin, kPage);
  if (aligned != begin) {
    munmap(mapped, aligned - begin);
  }
  munmap(reinterpret_cast<void*>(aligned + bytes), begin + kPage - aligned);
  // Without transparent huge pages the small ones do, more slowly.
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return aligned;
}

} // namespace

void* PageArena::allocate(size_t bytes) {
  const size_t size = round_up(bytes, kGranule);
  const std::lock_guard lock(mutex_);
  auto fit = free_by_size_.lower_bound({size, 0});
  if (fit == free_by_size_.end()) {
    if (!grow(size)) {
      return nullptr;
    }
    fit = free_by_size_.lower_bound({size, 0});
  }
  const auto [available, begin] = *fit;
  free_by_size_.erase(fit);
  free_by_address_.erase(begin);
  if (available > size) {
    insert_free(begin + size, available - size);
  }
  asked_ += static_cast<int64_t>(bytes);
  peak_ = std::max(peak_, asked_);
  const size_t resident_before = resident_.size();
  for (uintptr_t page = begin / kHugePage; page <= (begin + size - 1) / kHugePage; ++page) {
    resident_.insert(page);
  }
  if (resident_.size() > resident_before) {
    const int64_t most_resident = peak_ + std::max(peak_ / kSpareShare, kSpareAtLeast);
    release_all(std::min(cache_limit_, most_resident - asked_));
  }
  return reinterpret_cast<void*>(begin);
}

void PageArena::free(void* block, size_t bytes) {
  auto begin = reinterpret_cast<uintptr_t>(block);
  size_t size = round_up(bytes, kGranule);
  const std::lock_guard lock(mutex_);
  asked_ -= static_cast<int64_t>(bytes);
  const auto next = free_by_address_.lower_bound(begin);
  if (next != free_by_address_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      size += previous->second;
      free_by_size_.erase({previous->second, previous->first});
      free_by_address_.erase(previous);
    }
  }
  if (next != free_by_address_.end() && next->first == begin + size) {
    size += next->second;
    free_by_size_.erase({next->second, next->first});
    free_by_address_.erase(next);
  }
  insert_free(begin, size);
  release(begin, size, cache_limit_);
}

bool PageArena::grow(size_t bytes) {
  size_t size = std::max(round_up(bytes, kHugePage), kRegion);
  uintptr_t begin = map_region(size);
  if (begin == 0) {
    size = round_up(bytes, kHugePage);
    begin = map_region(size);
  }
  if (begin == 0) {
    return false;
  }
  insert_free(begin, size);
  return true;
}

void PageArena::insert_free(uintptr_t begin, size_t bytes) {
  free_by_address_.emplace(begin, bytes);
  free_by_size_.emplace(bytes, begin);
}

/// Gives back huge pages wholly inside the free range, from its end, while more than `keep` bytes
/// are cached.
void PageArena::release(uintptr_t begin, size_t bytes, int64_t keep) {
  const uintptr_t first = round_up(begin, kHugePage) / kHugePage;
  for (uintptr_t end = (begin + bytes) / kHugePage; end > first && cached() > keep; --end) {
    const auto page = resident_.find(end - 1);
    if (page != resident_.end() &&
        madvise(reinterpret_cast<void*>(*page * kHugePage), kHugePage, MADV_DONTNEED) == 0) {
      resident_.erase(page);
    }
  }
}

void PageArena::release_all(int64_t keep) {
  for (auto range = free_by_address_.rbegin(); range != free_by_address_.rend() && cached() > keep;
       ++range) {
    release(range->first, range->second, keep);
  }
}

int64_t PageArena::resident_bytes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(resident_.size() * kHugePage);
}

int64_t PageArena::cached_bytes() const {
  const std::lock_guard lock(mutex_);
  return cached();
}

void PageArena::set_cache_limit(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  cache_limit_ = bytes;
  release_all(bytes);
}

void PageArena::trim() {
  const std::lock_guard lock(mutex_);
  release_all(0);
  peak_ = asked_;
}

} // namespace palimpsest
