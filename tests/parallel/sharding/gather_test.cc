#include <palimpsest/parallel/sharding/gather.h>

#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace palimpsest::testing {
namespace {

struct Found {
  int64_t gathers = 0;
  int64_t peak = 0; // of gathered parameters
};

Found with_window(int64_t window, const std::string& policy) {
  const Case example =
      make({.micro_batches = 1, .policy = policy, .zero = 3, .shard = 2, .window = window});
  const Plans plans = example.plans();
  const PlanReport report = simulate(plans, example.job);
  return {
      std::count_if(
          plans[0].begin(),
          plans[0].end(),
          [](const Op& op) { return op.kind == OpKind::kGather; }),
      report.ranks[0].category[TierId::kDevice][PlanCategory::kParam]};
}

TEST(Gather, TheWindowTradesBytesForGathers) {
  // Embedding, eight blocks, head; the embedding's backward reads no weights, the head has no
  // backward of its own.
  const Found alone = with_window(0, "none");
  EXPECT_EQ(alone.gathers, 10 + 8);
  EXPECT_EQ(alone.peak, 6);
  const Found everything = with_window(1'000'000, "none");
  EXPECT_EQ(everything.gathers, 10);
  EXPECT_EQ(everything.peak, 10 * 6);
  const Found two = with_window(12, "none");
  EXPECT_EQ(two.peak, 12);
  EXPECT_LT(two.gathers, alone.gathers);
  EXPECT_GT(two.gathers, everything.gathers);
}

TEST(Gather, CoversRerunsToo) {
  // the first segment's four blocks run again; the last of them goes straight on to its backward
  EXPECT_EQ(with_window(0, "uniform_2").gathers, 10 + 4 + 8 - 1);
}

TEST(Gather, DoesNothingWhereParametersAreWhole) {
  const Case example = make({.zero = 2, .shard = 2});
  const Plans plans = example.plans();
  EXPECT_EQ(gather_pass(plans, example.job, example.options), plans);
}

} // namespace
} // namespace palimpsest::testing
