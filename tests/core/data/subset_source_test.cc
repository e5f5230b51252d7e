#include <palimpsest/core/data/subset_source.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/fake_source.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace palimpsest {
namespace {

TEST(HoldOut, DrawsAShareThatDependsOnTheSeedAlone) {
  const std::vector<int64_t> chosen = hold_out(1000, 0.025, 42);
  EXPECT_EQ(chosen, hold_out(1000, 0.025, 42));
  EXPECT_NE(chosen, hold_out(1000, 0.025, 43));
  EXPECT_EQ(chosen.size(), 25);
  EXPECT_TRUE(std::ranges::is_sorted(chosen));
  EXPECT_EQ(std::ranges::adjacent_find(chosen), chosen.end());
  EXPECT_LT(chosen.front(), 500);
  EXPECT_GT(chosen.back(), 500);
  EXPECT_LT(chosen.back(), 1000);
  EXPECT_EQ(hold_out(10, 0.001, 1).size(), 1); // never nothing
  EXPECT_EQ(hold_out(10, 0.999, 1).size(), 9); // nor all
  EXPECT_EQ(hold_out(2, 0.5, 1).size(), 1);
}

TEST(SubsetSource, SplitsASourceInTwo) {
  std::vector<TokenSample> samples;
  for (int64_t i = 0; i < 9; ++i) {
    samples.push_back({{i}, {-i}});
  }
  const std::shared_ptr<const SampleSource> all = std::make_shared<FakeSource>(samples);
  const auto values = [&](const std::vector<int64_t>& chosen, bool all_but) {
    const SubsetSource subset(all, chosen, all_but);
    Ids inputs;
    for (int64_t i = 0; i < subset.size(); ++i) {
      EXPECT_EQ(read_sample(subset, i).labels[0], -read_sample(subset, i).inputs[0]);
      inputs.push_back(read_sample(subset, i).inputs[0]);
    }
    EXPECT_THROW(read_sample(subset, subset.size()), InternalError);
    return inputs;
  };
  for (unsigned mask = 0; mask < 512; ++mask) { // every subset
    std::vector<int64_t> chosen;
    Ids rest;
    for (int64_t i = 0; i < 9; ++i) {
      ((mask >> i & 1) != 0 ? chosen : rest).push_back(i);
    }
    EXPECT_EQ(values(chosen, false), chosen);
    EXPECT_EQ(values(chosen, true), rest);
  }
}

} // namespace
} // namespace palimpsest
