#include <palimpsest/offload/tiers/offload_pass.h>

#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

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

/// Slots on the host when each micro-batch's first FORWARD begins, and at the end.
std::vector<size_t> left_on_host(const StepPlan& plan) {
  std::vector<size_t> left;
  std::set<Slot> held;
  std::set<int> begun;
  for (const Op& op : plan) {
    if (op.kind == OpKind::kForward && begun.insert(op.mb).second) {
      left.push_back(held.size());
    } else if (op.kind == OpKind::kStash && op.tier == TierId::kHost) {
      held.insert(op.slot);
    } else if (op.kind == OpKind::kDrop && op.tier == TierId::kHost) {
      EXPECT_EQ(held.erase(op.slot), 1U) << to_text(op);
    }
  }
  left.push_back(held.size());
  return left;
}

// Every layer runs again from an input of one byte that waits on the host: the host holds a byte more
// for each further layer, the device none, and after each micro-batch's backward nothing is left.
TEST(Offload, InputsThatWaitOnTheHostTakeNoDeviceMemoryByLayer) {
  for (const int zero : {0, 3}) {
    for (const int micro_batches : {1, 2}) {
      std::vector<RankReport> away;
      std::vector<RankReport> stay;
      for (const int layers : {8, 16}) {
        Choice choice{
            .micro_batches = micro_batches,
            .policy = "full",
            .zero = zero,
            .shard = 2,
            .away = "activations",
            .own = chain({.layers = layers, .per_layer = 2})};
        away.push_back(report(choice));
        EXPECT_THAT(left_on_host(make(choice).plans()[0]), ::testing::Each(0));
        choice.away = "no";
        stay.push_back(report(choice));
      }
      EXPECT_EQ(away[1].activation_peak, away[0].activation_peak);
      EXPECT_EQ(stay[1].activation_peak, stay[0].activation_peak + 8);
      EXPECT_EQ(away[1].peak[TierId::kHost], away[0].peak[TierId::kHost] + 8);
      EXPECT_EQ(away[0].category[TierId::kHost][PlanCategory::kValue], 8);
      EXPECT_EQ(away[1].category[TierId::kHost][PlanCategory::kValue], 16);
      EXPECT_EQ(away[1].forwards, stay[1].forwards);
    }
  }
}

TEST(Offload, TheHostHasABudgetOfItsOwn) {
  const Case example = make({.policy = "full", .away = "activations"});
  const Plans plans = example.plans();
  PlanBudget budget = promised(simulate(plans, example.job));
  EXPECT_NO_THROW(simulate(plans, example.job, budget));
  const int64_t peak = budget[0][TierId::kHost]--;
  ASSERT_GT(peak, 0);
  EXPECT_THAT(
      [&] { simulate(plans, example.job, budget); },
      ::testing::ThrowsMessage<PlanError>(
          ::testing::HasSubstr("over budget on the host: " + std::to_string(peak))));
}

TEST(Offload, NothingMovesWithoutATier) {
  const Plans plans = make({}).plans();
  for (const Op& op : plans[0]) {
    EXPECT_TRUE(op.kind != OpKind::kStash && op.kind != OpKind::kFetch);
  }
}

} // namespace
} // namespace palimpsest::testing
