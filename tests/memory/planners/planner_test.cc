// Covers: memory/planners/candidates.cc
// Covers: memory/planners/chen_greedy.cc
// Covers: memory/planners/policy_planners.cc
#include <palimpsest/memory/planners/planner.h>

#include <palimpsest/memory/planners/chain_run.h>
#include <palimpsest/memory/planners/replay.h>
#include <palimpsest/memory/recompute/policies.h>
#include <palimpsest/tests/memory/planners/chains.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>
#include <set>

namespace palimpsest::testing {
namespace {

using ::testing::HasSubstr;

std::optional<ChainPlan> plan_within(
    const Planner& planner,
    const CostChain& chain,
    int64_t budget) {
  try {
    return planner.plan(chain, budget);
  } catch (const InfeasibleBudget& error) {
    EXPECT_GT(error.least(), budget) << planner.name;
    return std::nullopt;
  }
}

TEST(Planners, KeepEveryBudgetAndNoneBeatsTheFastestPersistentPlan) {
  std::mt19937_64 draw(3);
  const Planner best = find_planner("dynamic_programming");
  for (int trial = 0; trial < 60; ++trial) {
    const CostChain chain = draw_chain(draw, {.most_stages = 9, .lean = trial % 2 == 0});
    const int64_t all = run_chain(chain, {}).peak;
    for (const Planner& planner : planners()) {
      SCOPED_TRACE(planner.name + ' ' + std::to_string(trial));
      double fastest = std::numeric_limits<double>::infinity();
      std::optional<int64_t> least;
      for (int64_t budget = all / 3; budget <= all + 4; budget += 4) {
        const std::optional<ChainPlan> plan = plan_within(planner, chain, budget);
        if (!plan) {
          EXPECT_FALSE(least) << "more budget is refused";
          continue;
        }
        least = plan->least_budget;
        const ChainReplay replay = replay_chain(chain, plan->segments);
        EXPECT_EQ(replay.peak, plan->peak);
        EXPECT_EQ(replay.makespan, plan->makespan);
        EXPECT_LE(plan->peak, budget);
        EXPECT_LE(plan->makespan, fastest);
        EXPECT_GE(plan->makespan, best.plan(chain, budget).makespan);
        fastest = plan->makespan;
      }
      ASSERT_TRUE(least);
      EXPECT_EQ(planner.plan(chain, *least).peak, *least);
      EXPECT_FALSE(plan_within(planner, chain, *least - 1));
    }
  }
}

TEST(Planners, AreThePoliciesAndThree) {
  std::vector<std::string> names;
  for (const Planner& planner : planners()) {
    names.push_back(planner.name);
    EXPECT_FALSE(planner.help.empty());
    EXPECT_EQ(find_planner(planner.name).name, planner.name);
  }
  EXPECT_THAT(
      names,
      ::testing::ElementsAre(
          "none",
          "full",
          "every_n",
          "uniform",
          "sqrt",
          "key_layers",
          "chen_greedy",
          "revolve",
          "dynamic_programming"));
  try {
    find_planner("dynamic");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'dynamic' is unknown"));
    EXPECT_THAT(error.what(), HasSubstr("revolve, dynamic_programming"));
  }
}

// Sixteen stages with tapes of 4 and outputs of 1, an endless backward of nothing else: the peak of
// runs of k is 16 / k inputs and k tapes, least with k = 2.
TEST(ChenGreedy, FindsTheShareThatFits) {
  const CostChain chain = equal_chain(16, 1, 4);
  const int64_t all = run_chain(chain, {}).peak;
  EXPECT_EQ(chen_greedy(chain, all).makespan, 16 + 32);
  for (int64_t budget = chen_greedy(chain, all).least_budget; budget < all; ++budget) {
    const ChainPlan plan = chen_greedy(chain, budget);
    // a stage runs at most twice
    EXPECT_LE(plan.makespan, 2 * 16 + 32);
    int recomputed_stages = 0;
    for (const Segment& segment : plan.segments) {
      recomputed_stages += segment.tape == TapeMode::kNone ? segment.blocks.size() : 0;
    }
    EXPECT_EQ(plan.makespan, 16 + recomputed_stages + 32);
  }
}

TEST(ChenGreedy, WalksInEqualRunsOfEqualStagesDownToOne) {
  const CostChain chain = equal_chain(16, 1, 100);
  // one large tape at a time, as where every stage runs again by itself
  EXPECT_EQ(
      chen_greedy(chain, 10'000).least_budget,
      find_planner("full").plan(chain, 10'000).least_budget);
  std::set<int> lengths;
  for (int64_t budget = 120; budget < 1600; budget += 20) {
    const Segments segments = chen_greedy(chain, budget).segments;
    const int first = segments.front().blocks.size();
    for (size_t run = 0; run + 1 < segments.size(); ++run) {
      EXPECT_EQ(segments[run].blocks.size(), first);
    }
    lengths.insert(first);
  }
  EXPECT_GE(lengths.size(), 4);
}

TEST(ChenGreedy, ClosesARunWhereItsTapesWouldExceedTheShare) {
  CostChain chain = equal_chain(6, 1, 2);
  chain.stages[3].tapes[0].bytes = 9;
  // The least peak has the large tape alone: runs end before and after it.
  const ChainPlan plan = chen_greedy(chain, chen_greedy(chain, 1000).least_budget);
  bool alone = false;
  for (const Segment& segment : plan.segments) {
    alone = alone || segment.blocks == BlockRange{3, 4};
  }
  EXPECT_TRUE(alone);
}

TEST(PolicyPlanners, TakeTheFastestSettingThatFits) {
  const CostChain chain = equal_chain(12, 1, 4);
  const int64_t all = run_chain(chain, {}).peak;
  for (int64_t budget = 20; budget <= all; budget += 3) {
    const std::optional<ChainPlan> plan = plan_within(find_planner("key_layers"), chain, budget);
    if (!plan) {
      continue;
    }
    // 3 N - K executions of 1 s and backwards 1 s longer, with the most layers kept that fit
    for (int kept = 0; kept <= 12; ++kept) {
      const double makespan = 12 + (12 - kept) + 24;
      if (makespan < plan->makespan) {
        Segments segments;
        for (int layer = 0; layer < 12 - kept; ++layer) {
          segments.push_back(recomputed({layer, layer + 1}));
        }
        EXPECT_GT(run_chain(chain, segments).peak, budget);
      }
    }
  }
  EXPECT_EQ(find_planner("none").plan(chain, all).makespan, 36);
  EXPECT_EQ(find_planner("none").plan(chain, all).least_budget, all);
  EXPECT_EQ(find_planner("full").plan(chain, all).makespan, 36 + 11); // the last one is kept
}

TEST(Infeasible, SaysWhatTheLeastBudgetConsistsOf) {
  // Only the tape of the last stage matters: 1000 beside an input of 10 each and gradients.
  CostChain chain = equal_chain(3, 10, 20);
  chain.stages[2].name = "head";
  chain.stages[2].tapes[0].bytes = 1000;
  chain.stages[2].tapes[0].backward_workspace = 7;
  try {
    dynamic_programming(chain, 500);
    FAIL();
  } catch (const InfeasibleBudget& error) {
    EXPECT_EQ(error.least(), 10 + 10 + 1000 + 20 + 7);
    EXPECT_STREQ(
        error.what(),
        "dynamic_programming: a budget of 500 bytes is too small; it needs at least 1047 bytes, "
        "since the backward of stage 3 (head) needs them: 10 for the chain's input, 10 for kept "
        "outputs, 1000 for tapes, 20 for gradients, 7 for workspace");
  }
}

} // namespace
} // namespace palimpsest::testing
