#include <palimpsest/core/data/examples/packing.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Pack, FillsTheTightestRoom) {
  // 500 leaves 12, 300 + 200 leave 12: the last 12 goes where room was made last.
  const Packs packs = pack(std::vector<int32_t>{300, 200, 500, 12}, 512);
  EXPECT_THAT(packs.items, ElementsAre(0, 1, 3, 2));
  EXPECT_THAT(packs.ends, ElementsAre(3, 4));
  // 6 + 4, 5 + 5, 4 + 1.
  const Packs other = pack(std::vector<int32_t>{1, 6, 5, 5, 4, 4}, 10);
  EXPECT_THAT(other.items, ElementsAre(0, 5, 1, 4, 2, 3));
  EXPECT_THAT(other.ends, ElementsAre(2, 4, 6));
  EXPECT_THAT(pack({}, 10).items, IsEmpty());
  EXPECT_THAT(pack({}, 10).ends, IsEmpty());
  EXPECT_THROW(pack(std::vector<int32_t>{11}, 10), InternalError);
}

TEST(Pack, HoldsEveryItemOnceAndNeedsFewPacks) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int32_t> length(1, 700);
  std::vector<int32_t> lengths(20'000);
  std::ranges::generate(lengths, [&] { return length(random); });
  const Packs packs = pack(lengths, 1000);
  std::vector<int> seen(lengths.size());
  int64_t begin = 0;
  int64_t last_first = -1;
  for (const int64_t end : packs.ends) {
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      const auto item = static_cast<size_t>(packs.items[static_cast<size_t>(i)]);
      sum += lengths[item];
      ++seen[item];
      if (i > begin) {
        EXPECT_LT(packs.items[static_cast<size_t>(i - 1)], packs.items[static_cast<size_t>(i)]);
      }
    }
    EXPECT_LE(sum, 1000);
    EXPECT_GT(packs.items[static_cast<size_t>(begin)], last_first);
    last_first = packs.items[static_cast<size_t>(begin)];
    begin = end;
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
  const auto tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t least = (tokens + 999) / 1000;
  EXPECT_LE(std::ssize(packs.ends), least * 11 / 9 + 1); // the method's bound
}

} // namespace
} // namespace palimpsest
