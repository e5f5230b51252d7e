#include <palimpsest/launcher/compose/ordered_blocks.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(OrderedBlocks, AreTakenInOrder) {
  for (const int threads : {1, 2, 7}) {
    std::vector<int64_t> taken;
    std::vector<std::atomic<int64_t>> made(static_cast<size_t>(threads));
    for_ordered_blocks(
        500,
        threads,
        [&](int64_t block, int thread) {
          ++made[static_cast<size_t>(thread)];
          return block * block;
        },
        [&](int64_t square) { taken.push_back(square); });
    ASSERT_EQ(taken.size(), 500);
    for (int64_t block = 0; block < 500; ++block) {
      ASSERT_EQ(taken[static_cast<size_t>(block)], block * block);
    }
    EXPECT_EQ(std::accumulate(made.begin(), made.end(), int64_t{0}), 500);
  }
  for_ordered_blocks(
      0, 3, [](int64_t, int) -> int { throw 1; }, [](int) { throw 1; });
}

TEST(OrderedBlocks, EndWithTheErrorOfTheFirstBlock) {
  for (const int threads : {1, 2, 7}) {
    std::atomic<int64_t> taken = 0;
    EXPECT_THAT(
        ([&] {
          for_ordered_blocks(
              100,
              threads,
              [](int64_t block, int) {
                if (block >= 40) {
                  throw UserError("block {}", block);
                }
                return true;
              },
              [&](bool) { ++taken; });
        }),
        ThrowsMessage<UserError>(HasSubstr("block 40")));
    EXPECT_EQ(taken, 40);
    EXPECT_THROW(
        for_ordered_blocks(
            100,
            threads,
            [](int64_t, int) { return true; },
            [](bool) { throw EnvironmentError("the disk is full"); }),
        EnvironmentError);
  }
}

} // namespace
} // namespace palimpsest
