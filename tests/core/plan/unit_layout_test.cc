#include <palimpsest/core/plan/unit_layout.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(UnitLayout, AGroupOfOneHasNoPadding) {
  EXPECT_EQ(cut_unit(57, 1), (UnitLayout{57, 57, 1}));
  EXPECT_EQ(cut_unit(57, 1).range(0), (ElementRange{0, 57}));
  EXPECT_EQ(cut_unit(0, 1).whole(), 0);
}

TEST(UnitLayout, SmallUnitsLeaveRanksEmpty) {
  const UnitLayout layout = cut_unit(5, 4);
  EXPECT_EQ(layout.range(0), (ElementRange{0, 5}));
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(layout.range(rank).size(), 0);
  }
  EXPECT_EQ(cut_unit(0, 3).range(2).size(), 0);
}

// Every element belongs to one rank, in order, and borders lie between chunks, also those of
// pieces.
TEST(UnitLayout, RangesCoverTheUnitAtChunks) {
  for (const int64_t elements : {0, 1, 4095, 4096, 4097, 10'000, 123'457, 4096 * 64}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (int pieces = 1; pieces <= 4; ++pieces) {
        const UnitLayout layout = cut_unit(elements, ranks, pieces);
        int64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const ElementRange range = layout.range(rank);
          EXPECT_EQ(range.begin, next);
          EXPECT_LE(range.size(), layout.shard);
          EXPECT_TRUE(range.begin % kShardChunk == 0 || range.begin == elements);
          next = range.end;
        }
        EXPECT_EQ(next, elements);
        EXPECT_LT(layout.whole() - elements, std::max<int64_t>(1, kShardChunk * ranks * pieces));
        if (ranks * pieces > 1) {
          EXPECT_EQ(layout.shard % (kShardChunk * pieces), 0);
        }
      }
    }
  }
}

} // namespace
} // namespace palimpsest
