#include <palimpsest/core/device/allocator.h>

#include <palimpsest/core/device/ledger.h>
#include <palimpsest/core/device/page_arena.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <mutex>
#include <new>

namespace palimpsest {

namespace {

constexpr size_t kAlignment = 64; // a cache line, and the widest vector

/// What precedes every block's data.
struct Header {
  BlockOwner owner;
  void* start; // what malloc returned
};
static_assert(sizeof(Header) <= kAlignment);

/// Blocks below come from malloc, whose thread caches are hard to beat; the others from the arena,
/// with a cache line for the header.
constexpr size_t kArenaFrom = size_t{16} << 10;

PageArena& arena() {
  static auto* const instance = new PageArena; // blocks of static lifetime outlive it otherwise
  return *instance;
}

Header* header_of(void* data) {
  return static_cast<Header*>(data) - 1;
}

/// Data of `bytes` with room for a header before it; null when the system refuses.
void* take(size_t bytes) {
  if (bytes >= kArenaFrom) {
    void* const start = arena().allocate(bytes + kAlignment);
    return start == nullptr ? nullptr : static_cast<char*>(start) + kAlignment;
  }
  // malloc aligns to 16 bytes, so this much reaches the next multiple of 64 behind a header.
  void* const start = std::malloc(bytes + sizeof(Header) + kAlignment - 16);
  if (start == nullptr) {
    return nullptr;
  }
  const auto after_header = reinterpret_cast<uintptr_t>(start) + sizeof(Header);
  void* const data =
      reinterpret_cast<void*>((after_header + kAlignment - 1) / kAlignment * kAlignment);
  header_of(data)->start = start;
  return data;
}

void give_back(void* data) {
  if (data == nullptr) {
    return;
  }
  const Header header = *header_of(data);
  header.owner.ledger->discharge(header.owner.bytes, header.owner.category);
  const auto bytes = static_cast<size_t>(header.owner.bytes);
  if (bytes >= kArenaFrom) {
    arena().free(static_cast<char*>(data) - kAlignment, bytes + kAlignment);
  } else {
    std::free(header.start);
  }
}

} // namespace

BlockOwner& owner_of(void* data) {
  return header_of(data)->owner;
}

void install_cpu_allocator() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(&CpuAllocator::instance(), /*priority=*/100); });
}

CpuAllocator& CpuAllocator::instance() {
  static auto* const allocator = new CpuAllocator;
  return *allocator;
}

c10::DataPtr CpuAllocator::allocate(size_t bytes) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (bytes == 0) {
    return {nullptr, nullptr, &give_back, cpu};
  }
  // Beyond this no memory could be, and the sums below would overflow.
  TORCH_CHECK_WITH(
      OutOfMemoryError, bytes <= (size_t{1} << 62), "out of memory: ", bytes, " bytes wanted");
  const auto size = static_cast<int64_t>(bytes);
  const Ledger::Tag tag = Ledger::of_this_thread();
  tag.ledger->charge(size, tag.category);
  void* const data = take(bytes);
  if (data == nullptr) {
    tag.ledger->discharge(size, tag.category);
    tag.ledger->note_refusal(size, tag.category, tag.ledger->live);
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        false,
        tag.ledger->name,
        ": out of memory: ",
        bytes,
        " bytes wanted, ",
        tag.ledger->live.load(),
        " live, and the system gives no more");
  }
  owner_of(data) = {tag.ledger, size, tag.category};
  return {data, data, &give_back, cpu};
}

c10::DeleterFnPtr CpuAllocator::raw_deleter() const {
  return &give_back;
}

void CpuAllocator::copy_data(void* destination, const void* source, size_t bytes) const {
  default_copy_data(destination, source, bytes);
}

int64_t CpuAllocator::cached_bytes() const {
  return arena().cached_bytes();
}

void CpuAllocator::set_cache_limit(int64_t bytes) {
  arena().set_cache_limit(bytes);
}

void CpuAllocator::trim() {
  arena().trim();
}

} // namespace palimpsest
