#include <palimpsest/core/data/epoch_order.h>

#include <palimpsest/core/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace palimpsest {
namespace {

std::vector<int64_t> order_of(uint64_t seed, int64_t epoch, int64_t samples, bool shuffle = true) {
  const EpochOrder order(seed, epoch, samples, shuffle);
  std::vector<int64_t> all(static_cast<size_t>(samples));
  for (int64_t i = 0; i < samples; ++i) {
    all[static_cast<size_t>(i)] = order[i];
  }
  return all;
}

std::vector<int64_t> in_order(int64_t samples) {
  std::vector<int64_t> all(static_cast<size_t>(samples));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(EpochOrder, HasEverySampleOnce) {
  for (const int64_t samples : {1, 2, 3, 7, 100, 255, 256, 257, 1023, 1025, 5000, 70000}) {
    for (const int64_t epoch : {0, 1, 9}) {
      std::vector<int64_t> all = order_of(42, epoch, samples);
      std::ranges::sort(all);
      EXPECT_EQ(all, in_order(samples)) << samples << " " << epoch;
    }
  }
}

TEST(EpochOrder, KeepsFileOrderWithoutShuffle) {
  EXPECT_EQ(order_of(42, 3, 100, false), in_order(100));
}

TEST(EpochOrder, ChangesWithSeedAndEpochOnly) {
  EXPECT_EQ(order_of(1, 2, 1000), order_of(1, 2, 1000));
  EXPECT_NE(order_of(1, 2, 1000), in_order(1000));
  EXPECT_NE(order_of(1, 2, 1000), order_of(1, 3, 1000));
  EXPECT_NE(order_of(1, 2, 1000), order_of(2, 2, 1000));
  EXPECT_NE(order_of(1, 2, 1000), order_of(2, 1, 1000));
}

/// Chi-square of the counts against a uniform one, in standard deviations above its mean.
double excess(const std::vector<int64_t>& counts) {
  const double mean = static_cast<double>(std::reduce(counts.begin(), counts.end())) /
      static_cast<double>(counts.size());
  double chi = 0;
  for (const int64_t count : counts) {
    const double difference = static_cast<double>(count) - mean;
    chi += difference * difference / mean;
  }
  const auto freedom = static_cast<double>(counts.size() - 1);
  return (chi - freedom) / std::sqrt(2 * freedom);
}

TEST(EpochOrder, IsUniform) {
  // All orders of four samples, and the pairs (position, sample) of fifty.
  std::vector<int64_t> orders(256);
  for (int64_t epoch = 0; epoch < 24'000; ++epoch) {
    const EpochOrder order(7, epoch, 4, true);
    ++orders[static_cast<size_t>(order[0] | order[1] << 2 | order[2] << 4 | order[3] << 6)];
  }
  std::erase(orders, 0);
  EXPECT_EQ(orders.size(), 24);
  EXPECT_LT(std::abs(excess(orders)), 4);
  std::vector<int64_t> places(50 * 50);
  for (int64_t epoch = 0; epoch < 2'000; ++epoch) {
    const EpochOrder order(8, epoch, 50, true);
    for (int64_t i = 0; i < 50; ++i) {
      ++places[static_cast<size_t>(i * 50 + order[i])];
    }
  }
  EXPECT_LT(std::abs(excess(places)), 4);
}

TEST(EpochOrder, IsTheSameOnEveryMachine) {
  // From an independent implementation in Python of what the header describes.
  EXPECT_EQ(order_of(42, 0, 10), (std::vector<int64_t>{0, 9, 6, 5, 7, 4, 2, 8, 1, 3}));
  EXPECT_EQ(EpochOrder(7, 3, 1'000'000'000'000, true)[123'456'789], 220'723'118'490);
}

TEST(EpochOrder, RefusesPositionsOutside) {
  const EpochOrder order(1, 0, 10, true);
  EXPECT_THROW(order[10], InternalError);
  EXPECT_THROW(order[-1], InternalError);
  EXPECT_THROW(EpochOrder(1, 0, 0, true), InternalError);
}

} // namespace
} // namespace palimpsest
