#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/device/rss.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <thread>
#include <vector>

namespace palimpsest {
namespace {

constexpr int64_t kMiB = 1 << 20;

class AllocatorTest : public testing::Test {
 protected:
  AllocatorTest() {
    install_cpu_allocator();
    install_cpu_allocator(); // twice does no harm
  }
};

TEST_F(AllocatorTest, IsLibTorchsAndKeepsItsContract) {
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  ASSERT_EQ(allocator, &CpuAllocator::instance());
  ASSERT_NE(allocator->raw_deleter(), nullptr);
  for (const size_t bytes : {1, 63, 64, 1000, 16383, 16384, 1 << 20, 5000001}) {
    const c10::DataPtr block = allocator->allocate(bytes);
    EXPECT_EQ(block.get(), block.get_context());
    EXPECT_EQ(block.get_deleter(), allocator->raw_deleter());
    EXPECT_TRUE(block.device().is_cpu());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % 64, 0U);
    std::memset(block.get(), 1, bytes);
  }
  void* const raw = allocator->raw_allocate(100);
  allocator->raw_deallocate(raw);
  const at::Tensor numbers = at::arange(1000);
  const c10::DataPtr copy = allocator->clone(numbers.const_data_ptr(), numbers.nbytes());
  EXPECT_EQ(std::memcmp(copy.get(), numbers.const_data_ptr(), numbers.nbytes()), 0);
}

TEST_F(AllocatorTest, NothingIsANullBlock) {
  MemoryContext memory("test");
  const ScopedContext scope(memory);
  EXPECT_EQ(c10::GetCPUAllocator()->allocate(0).get(), nullptr);
  EXPECT_EQ(at::empty({0}).numel(), 0);
  c10::GetCPUAllocator()->raw_deallocate(c10::GetCPUAllocator()->raw_allocate(0));
  EXPECT_EQ(memory.total().allocations, 0);
}

TEST_F(AllocatorTest, TheLimitThrowsAndChangesNothing) {
  MemoryContext memory("rank 3");
  const ScopedContext scope(memory);
  const ScopedCategory category(memory, Category::kWorkspace);
  memory.set_limit(10 * kMiB);
  EXPECT_EQ(memory.limit(), 10 * kMiB);
  const at::Tensor held = at::empty({6 * kMiB}, at::kByte);
  try {
    at::empty({4 * kMiB + 1}, at::kByte);
    FAIL() << "nothing thrown";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(
        error.what(),
        testing::HasSubstr("rank 3: out of memory: 4194305 bytes wanted (workspace), 6291456 live, "
                           "limit 10485760"));
  }
  EXPECT_EQ(memory.total().live, 6 * kMiB);
  EXPECT_EQ(memory.total().peak, 6 * kMiB);
  EXPECT_EQ(memory.total().allocations, 1);
  EXPECT_EQ(at::empty({4 * kMiB}, at::kByte).numel(), 4 * kMiB); // exactly the limit fits
}

TEST_F(AllocatorTest, ARefusalOfTheSystemThrowsToo) {
  MemoryContext memory("rank 0");
  const ScopedContext scope(memory);
  EXPECT_THROW(CpuAllocator::instance().allocate(size_t{1} << 50), c10::OutOfMemoryError);
  EXPECT_THROW(CpuAllocator::instance().allocate(SIZE_MAX), c10::OutOfMemoryError);
  EXPECT_EQ(memory.total().live, 0);
}

TEST_F(AllocatorTest, FreedMemoryIsReusedAndTrimmed) {
  CpuAllocator& allocator = CpuAllocator::instance();
  allocator.trim();
  const int64_t cached = allocator.cached_bytes();
  const int64_t rss = current_rss();
  { const at::Tensor block = at::zeros({64 * kMiB}, at::kByte); }
  const int64_t kept = allocator.cached_bytes() - cached;
  EXPECT_GE(kept, 62 * kMiB);
  EXPECT_LE(kept, 66 * kMiB);
  { const at::Tensor again = at::zeros({64 * kMiB}, at::kByte); }
  EXPECT_EQ(allocator.cached_bytes() - cached, kept);
  allocator.trim();
  EXPECT_LE(allocator.cached_bytes() - cached, 2 * kMiB);
  EXPECT_LE(current_rss() - rss, 4 * kMiB);
}

TEST_F(AllocatorTest, TheCacheLimitHolds) {
  CpuAllocator& allocator = CpuAllocator::instance();
  allocator.set_cache_limit(8 * kMiB);
  {
    const at::Tensor a = at::zeros({40 * kMiB}, at::kByte);
    const at::Tensor b = at::zeros({20 * kMiB}, at::kByte);
  }
  EXPECT_LE(allocator.cached_bytes(), 8 * kMiB);
  allocator.set_cache_limit(std::numeric_limits<int64_t>::max());
}

TEST_F(AllocatorTest, RssIsBaselineAndTrackedAndCached) {
  CpuAllocator& allocator = CpuAllocator::instance();
  allocator.trim();
  MemoryContext memory("test");
  const ScopedContext scope(memory);
  const int64_t baseline = current_rss() - allocator.cached_bytes();
  std::vector<at::Tensor> held;
  for (int64_t i = 1; i <= 60; ++i) { // sizes of a step: many, mixed, some freed in between
    held.push_back(at::zeros({i * 50001}, at::kFloat));
    if (i % 3 == 0) {
      held.erase(held.begin() + i / 3);
    }
  }
  const int64_t tracked = memory.total().live;
  const int64_t explained = baseline + tracked + allocator.cached_bytes();
  EXPECT_LE(current_rss(), explained + 2 * kMiB);
  EXPECT_GE(current_rss(), baseline + tracked - 2 * kMiB);
  EXPECT_LE(tracked + allocator.cached_bytes(), memory.total().peak * 5 / 4);
}

TEST_F(AllocatorTest, ThreadsAllocateAndFreeEachOthersBlocks) {
  MemoryContext memory("test");
  std::vector<std::vector<at::Tensor>> made(4);
  const auto on_each = [&](auto&& work) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < made.size(); ++t) {
      threads.emplace_back(work, t);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  };
  int64_t expected = 0;
  for (int64_t i = 0; i < 200; ++i) {
    expected += 4 * (i * 977 + 1);
  }
  on_each([&](size_t t) {
    const ScopedContext scope(memory);
    for (int64_t i = 0; i < 200; ++i) {
      made[t].push_back(at::empty({i * 977 + 1}, at::kByte));
    }
  });
  EXPECT_EQ(memory.total().live, expected);
  EXPECT_EQ(memory.total().peak, expected);
  EXPECT_EQ(memory.total().allocations, 800);
  on_each([&](size_t t) { made[(t + 1) % made.size()].clear(); });
  EXPECT_EQ(memory.total().live, 0);
}

} // namespace
} // namespace palimpsest
