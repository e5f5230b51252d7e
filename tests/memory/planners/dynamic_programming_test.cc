// Covers: memory/planners/chain_parts.cc
#include <palimpsest/memory/planners/dynamic_programming.h>

#include <palimpsest/memory/planners/chain_run.h>
#include <palimpsest/memory/planners/replay.h>
#include <palimpsest/tests/memory/planners/chains.h>

#include <gtest/gtest.h>

namespace palimpsest::testing {
namespace {

constexpr int64_t kEndless = int64_t{1} << 60;

std::optional<ChainPlan> plan_within(const CostChain& chain, int64_t budget) {
  try {
    return dynamic_programming(chain, budget);
  } catch (const InfeasibleBudget&) {
    return std::nullopt;
  }
}

TEST(DynamicProgramming, IsThePublishedOptimumAtEveryBudget) {
  ASSERT_EQ(rotor_cases().size(), 7);
  for (const RotorCase& rotor : rotor_cases()) {
    const DynamicProgram all_budgets(rotor.chain, kEndless);
    for (int64_t budget = 0; budget <= rotor.all_tapes_peak + 5; ++budget) {
      SCOPED_TRACE(rotor.id + ' ' + std::to_string(budget));
      const std::optional<double> optimum = rotor.optimum(budget);
      const std::optional<ChainPlan> plan = plan_within(rotor.chain, budget);
      ASSERT_EQ(plan.has_value(), optimum.has_value());
      if (!plan) {
        EXPECT_THROW(all_budgets.plan(budget), InfeasibleBudget);
        continue;
      }
      EXPECT_EQ(plan->makespan, *optimum);
      EXPECT_EQ(plan->least_budget, rotor.least_budget);
      const ChainReplay replay = replay_chain(rotor.chain, plan->segments);
      EXPECT_EQ(replay.makespan, *optimum);
      EXPECT_EQ(replay.peak, plan->peak);
      EXPECT_LE(replay.peak, budget);
      EXPECT_EQ(all_budgets.plan(budget).segments, plan->segments);
    }
  }
}

TEST(DynamicProgramming, RefusesOneByteBelowTheLeastBudgetNamingIt) {
  for (const RotorCase& rotor : rotor_cases()) {
    EXPECT_EQ(dynamic_programming(rotor.chain, rotor.least_budget).peak, rotor.least_budget);
    try {
      dynamic_programming(rotor.chain, rotor.least_budget - 1);
      FAIL() << rotor.id;
    } catch (const InfeasibleBudget& error) {
      EXPECT_EQ(error.least(), rotor.least_budget);
      EXPECT_EQ(error.exit_code(), 2);
      const std::string least = std::to_string(rotor.least_budget) + " bytes";
      EXPECT_NE(std::string(error.what()).find(least), std::string::npos) << error.what();
    }
  }
}

} // namespace
} // namespace palimpsest::testing
