#include <palimpsest/core/device/page_arena.h>
#include <palimpsest/core/device/rss.h>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace palimpsest {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(PageArena, HandsOutTheSameMemoryAgain) {
  PageArena arena;
  void* const first = arena.allocate(33 * kMiB);
  arena.free(first, 33 * kMiB);
  EXPECT_EQ(arena.allocate(33 * kMiB), first);
}

TEST(PageArena, CoalescesSoThatOneLargeBlockFitsWhereManySmallWere) {
  PageArena arena;
  std::vector<void*> blocks;
  for (int i = 0; i < 32; ++i) {
    blocks.push_back(arena.allocate(kMiB));
  }
  const int64_t resident = arena.resident_bytes();
  EXPECT_EQ(resident, static_cast<int64_t>(32 * kMiB));
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  for (void* block : blocks) {
    arena.free(block, kMiB);
  }
  EXPECT_EQ(arena.cached_bytes(), resident);
  arena.allocate(32 * kMiB);
  EXPECT_EQ(arena.resident_bytes(), resident);
  EXPECT_EQ(arena.cached_bytes(), 0);
}

TEST(PageArena, BlocksOfRandomSizesNeverOverlapAndWasteIsBounded) {
  PageArena arena;
  std::mt19937 random(7);
  struct Block {
    unsigned char* data;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Block> live;
  int64_t asked = 0;
  int64_t peak = 0;
  for (int i = 0; i < 4000; ++i) {
    if (live.size() < 40 || random() % 2 == 0) {
      const size_t bytes = (size_t{16} << (10 + random() % 7)) + random() % 5000;
      Block block{
          static_cast<unsigned char*>(arena.allocate(bytes)), bytes, static_cast<unsigned char>(i)};
      ASSERT_NE(block.data, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block.data) % PageArena::kGranule, 0U);
      // The ends are where a neighbour would write.
      std::memset(block.data, block.mark, 64);
      std::memset(block.data + bytes - 64, block.mark, 64);
      asked += static_cast<int64_t>(bytes);
      peak = std::max(peak, asked);
      live.push_back(block);
    } else {
      std::swap(live[random() % live.size()], live.back());
      const Block block = live.back();
      live.pop_back();
      for (size_t k = 0; k < 64; ++k) {
        ASSERT_EQ(block.data[k], block.mark);
        ASSERT_EQ(block.data[block.bytes - 1 - k], block.mark);
      }
      arena.free(block.data, block.bytes);
      asked -= static_cast<int64_t>(block.bytes);
    }
    ASSERT_EQ(arena.resident_bytes() - arena.cached_bytes(), asked);
  }
  EXPECT_LE(arena.resident_bytes(), peak * 5 / 4); // partly used huge pages included
  for (const Block& block : live) {
    arena.free(block.data, block.bytes);
  }
  arena.trim();
  EXPECT_EQ(arena.resident_bytes(), 0);
}

TEST(PageArena, TrimReturnsMemoryToTheSystem) {
  PageArena arena;
  const int64_t before = current_rss();
  void* const block = arena.allocate(64 * kMiB);
  std::memset(block, 1, 64 * kMiB);
  EXPECT_GE(current_rss() - before, static_cast<int64_t>(62 * kMiB));
  arena.free(block, 64 * kMiB);
  EXPECT_GE(current_rss() - before, static_cast<int64_t>(62 * kMiB));
  arena.trim();
  EXPECT_EQ(arena.resident_bytes(), 0);
  EXPECT_LE(current_rss() - before, static_cast<int64_t>(2 * kMiB));
  // And can be had again, zeroed by the system.
  auto* const again = static_cast<unsigned char*>(arena.allocate(64 * kMiB));
  EXPECT_EQ(std::count(again, again + 64 * kMiB, 0), static_cast<int64_t>(64 * kMiB));
}

TEST(PageArena, KeepsNoMoreThanTheCacheLimit) {
  PageArena arena;
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) {
    blocks.push_back(arena.allocate(4 * kMiB));
  }
  arena.set_cache_limit(10 * kMiB);
  for (int i = 0; i < 16; ++i) {
    arena.free(blocks[i], 4 * kMiB);
    EXPECT_EQ(arena.cached_bytes(), static_cast<int64_t>(std::min(10, 4 * (i + 1)) * kMiB));
  }
  arena.set_cache_limit(3 * kMiB); // huge pages are whole: 2 MiB stay
  EXPECT_EQ(arena.cached_bytes(), static_cast<int64_t>(2 * kMiB));
}

TEST(PageArena, HolesThatFitNothingAreGivenBack) {
  // Each block is larger than all before it, and every other one is freed: no hole is ever used
  // again.
  PageArena arena;
  std::vector<void*> blocks;
  size_t live = 0;
  size_t peak = 0;
  for (size_t i = 1; i <= 40; ++i) {
    blocks.push_back(arena.allocate(2 * i * kMiB));
    live += 2 * i;
    peak = std::max(peak, live);
    if (i % 2 == 0) {
      arena.free(blocks[i - 2], 2 * (i - 1) * kMiB);
      live -= 2 * (i - 1);
    }
  }
  EXPECT_LE(arena.resident_bytes(), static_cast<int64_t>((peak + peak / 8) * kMiB));
}

int64_t page_faults() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST(PageArena, ARepeatedStepMeetsNoPageFaults) {
  PageArena arena;
  int64_t faults = 0; // when blocks are written to
  const auto allocate = [&](size_t bytes) {
    void* const block = arena.allocate(bytes);
    const int64_t before = page_faults();
    std::memset(block, 1, bytes);
    faults += page_faults() - before;
    return block;
  };
  const auto step = [&] {
    std::mt19937 random(3);
    std::vector<std::pair<void*, size_t>> kept;
    for (int i = 0; i < 100; ++i) { // each op: an output that stays and scratch that does not
      const size_t output = kMiB / 4 + random() % (2 * kMiB);
      const size_t scratch = kMiB / 4 + random() % (4 * kMiB);
      void* const used = allocate(scratch);
      kept.emplace_back(allocate(output), output);
      arena.free(used, scratch);
    }
    for (; !kept.empty(); kept.pop_back()) {
      arena.free(kept.back().first, kept.back().second);
    }
  };
  step();
  step(); // the free ranges settle
  EXPECT_GT(faults, 50); // fresh memory does fault, a huge page at a time at least
  faults = 0;
  for (int i = 0; i < 3; ++i) {
    step();
  }
  EXPECT_LE(faults, 5);
}

TEST(PageArena, ARefusalOfTheSystemIsNull) {
  PageArena arena;
  EXPECT_EQ(arena.allocate(size_t{1} << 50), nullptr); // beyond what addresses reach
  EXPECT_EQ(arena.resident_bytes(), 0);
}

} // namespace
} // namespace palimpsest
