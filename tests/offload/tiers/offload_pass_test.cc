#include <palimpsest/offload/tiers/offload_pass.h>

#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace palimpsest::testing {
namespace {

RankReport report(const Choice& choice) {
  const Case example = make(choice);
  return simulate(example.plans(), example.job).ranks[0];
}

TEST(Offload, StatesRestOnTheirTier) {
  const RankReport plain = report({});
  const RankReport away = report({.away = "optimizer"});
  EXPECT_EQ(plain.category[TierId::kDevice][PlanCategory::kOptimizerState], 10 * 36);
  EXPECT_EQ(away.category[TierId::kHost][PlanCategory::kOptimizerState], 10 * 36);
  EXPECT_LE(
      away.category[TierId::kDevice][PlanCategory::kOptimizerState], 3 * 36); // read-ahead of one
  EXPECT_LT(away.peak[TierId::kDevice], plain.peak[TierId::kDevice]);
}

TEST(Offload, ACopyThatIsStillGoodIsNotWrittenAgain) {
  const Case example = make({.zero = 3, .away = "parameters"});
  int stashes = 0;
  int fetches = 0;
  const Plans plans = example.plans();
  for (const Op& op : plans[0]) {
    if (has_slot(op.kind) && op.slot == Slot{.kind = SlotKind::kParamShard, .owner = 1}) {
      stashes += op.kind == OpKind::kStash;
      fetches += op.kind == OpKind::kFetch;
    }
  }
  EXPECT_GT(fetches, 2); // each use that is far from the last
  EXPECT_EQ(stashes, 1); // only UPDATE makes the host's copy stale
}

TEST(Offload, MoreReadAheadFetchesEarlierAndHoldsMore) {
  Choice choice{
      .away = "activations", .read_ahead = 0, .own = chain({.layers = 9, .per_layer = 1})};
  const RankReport late = report(choice);
  choice.read_ahead = 3;
  const RankReport early = report(choice);
  EXPECT_LT(
      late.category[TierId::kDevice][PlanCategory::kTape],
      early.category[TierId::kDevice][PlanCategory::kTape]);
  EXPECT_EQ(late.forwards, early.forwards);
}

TEST(Offload, NothingMovesWithoutATier) {
  const Plans plans = make({}).plans();
  for (const Op& op : plans[0]) {
    EXPECT_TRUE(op.kind != OpKind::kStash && op.kind != OpKind::kFetch);
  }
}

} // namespace
} // namespace palimpsest::testing
