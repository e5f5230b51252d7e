#include <palimpsest/core/data/mixture_order.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace palimpsest {
namespace {

std::vector<int64_t> epoch(const Mixture& mixture, int64_t number, bool shuffle = true) {
  const MixtureOrder order(mixture, 42, number, shuffle);
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < mixture.size(); ++i) {
    samples.push_back(order[i]);
  }
  return samples;
}

TEST(MixtureOrder, IsTheEpochOrderWhereAllWeightsAreOne) {
  const Mixture mixture({{.samples = 7}, {.samples = 30}, {.samples = 1}});
  ASSERT_EQ(mixture.size(), 38);
  for (const bool shuffle : {false, true}) {
    const EpochOrder order(42, 3, 38, shuffle);
    const std::vector<int64_t> samples = epoch(mixture, 3, shuffle);
    for (int64_t i = 0; i < 38; ++i) {
      EXPECT_EQ(samples[static_cast<size_t>(i)], order[i]);
    }
  }
}

TEST(MixtureOrder, TakesEachSourceByItsWeightAndItsSamplesEvenly) {
  const Mixture mixture(
      {{.samples = 10, .weight = 2.5},
       {.samples = 20, .weight = 0.25},
       {.samples = 4, .weight = 1}});
  ASSERT_EQ(mixture.size(), 25 + 5 + 4);
  std::map<int64_t, int> taken;
  for (int64_t number = 0; number < 8; ++number) {
    int first = 0;
    int second = 0;
    for (const int64_t sample : epoch(mixture, number)) {
      ++taken[sample];
      first += sample < 10 ? 1 : 0;
      second += sample >= 10 && sample < 30 ? 1 : 0;
    }
    EXPECT_EQ(first, 25);
    EXPECT_EQ(second, 5);
    for (int64_t sample = 0; sample < 34; ++sample) { // after each epoch
      const int64_t begin = sample < 10 ? 0 : sample < 30 ? 10 : 30;
      const int64_t end = sample < 10 ? 10 : sample < 30 ? 30 : 34;
      int least = 1000;
      for (int64_t other = begin; other < end; ++other) {
        least = std::min(least, taken[other]);
      }
      EXPECT_LE(taken[sample] - least, 1) << sample << " after epoch " << number;
    }
  }
  EXPECT_EQ(taken[0], 20);
  EXPECT_EQ(taken[10], 2);
  EXPECT_EQ(taken[33], 8);
}

TEST(MixtureOrder, DiffersFromEpochToEpochAndRepeats) {
  const Mixture mixture({{.samples = 50, .weight = 0.5}, {.samples = 50, .weight = 2}});
  EXPECT_NE(epoch(mixture, 0), epoch(mixture, 1));
  EXPECT_EQ(epoch(mixture, 1), epoch(mixture, 1));
}

TEST(MixtureOrder, FollowsTheFilesWithoutShuffling) {
  const Mixture mixture({{.samples = 2, .weight = 1.5}, {.samples = 3, .weight = 0.1}});
  EXPECT_EQ(epoch(mixture, 0, false), (std::vector<int64_t>{0, 1, 0, 2}));
  EXPECT_EQ(epoch(mixture, 1, false), (std::vector<int64_t>{1, 0, 1, 3}));
}

} // namespace
} // namespace palimpsest
