#include <palimpsest/core/data/step_windows.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace palimpsest {
namespace {

using testing::ElementsAre;

TEST(StepWindows, EndAnEpochWithASmallerOne) {
  const StepWindows windows(100, 8, false);
  EXPECT_EQ(windows.per_epoch(), 13);
  EXPECT_EQ(windows.rest(), 4);
  for (int64_t step = 0; step < 12; ++step) {
    EXPECT_EQ(windows.at(step).size, 8);
    EXPECT_EQ(windows.at(step).begin, 8 * step);
  }
  EXPECT_EQ(windows.at(12).size, 4);
  EXPECT_EQ(windows.at(12).begin, 96);
  EXPECT_EQ(windows.at(12).epoch, 0);
  EXPECT_EQ(windows.at(13).epoch, 1);
  EXPECT_EQ(windows.at(13).begin, 0);
}

TEST(StepWindows, LeaveItOutWithDropLast) {
  const StepWindows windows(100, 8, true);
  EXPECT_EQ(windows.per_epoch(), 12);
  EXPECT_EQ(windows.at(12).epoch, 1);
  EXPECT_EQ(windows.at(12).size, 8);
}

TEST(StepWindows, NeedAWholeBatchWithDropLast) {
  EXPECT_EQ(StepWindows(7, 8, false).at(0).size, 7);
  EXPECT_THAT(
      [] { StepWindows(7, 8, true); },
      testing::ThrowsMessage<UserError>(
          testing::HasSubstr("a batch of 8 does not fit the 7 samples")));
}

TEST(SplitEvenly, PutsLargerPartsFirst) {
  EXPECT_THAT(split_evenly(8, 3), ElementsAre(3, 3, 2));
  EXPECT_THAT(split_evenly(11, 3), ElementsAre(4, 4, 3));
  EXPECT_THAT(split_evenly(1, 4), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(split_evenly(12, 4), ElementsAre(3, 3, 3, 3));
  for (int64_t samples = 0; samples < 40; ++samples) {
    for (int64_t parts = 1; parts < 10; ++parts) {
      const auto sizes = split_evenly(samples, parts);
      EXPECT_EQ(std::reduce(sizes.begin(), sizes.end()), samples);
      EXPECT_LE(sizes.front() - sizes.back(), 1);
    }
  }
}

} // namespace
} // namespace palimpsest
