// Covers: memory/planners/chain_parts.cc
// Covers: memory/planners/least_memory.cc
#include <palimpsest/memory/planners/dynamic_programming.h>

#include <palimpsest/memory/planners/chain_run.h>
#include <palimpsest/memory/planners/replay.h>
#include <palimpsest/tests/memory/planners/chains.h>
#include <palimpsest/tests/memory/planners/exhaustive.h>

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>

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

TEST(DynamicProgramming, IsTheBestOfAllSchedulesOfDrawnChains) {
  std::mt19937_64 draw(7);
  int feasible = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const bool lean = trial % 2 == 1;
    const CostChain chain = draw_chain(draw, {.most_stages = trial % 8 < 6 ? 5 : 6, .lean = lean});
    const int64_t all = run_chain(chain, {}).peak;
    const int64_t budget = std::uniform_int_distribution<int64_t>(all / 2, all)(draw);
    SCOPED_TRACE(trial);
    const std::optional<double> best = exhaustive_makespan(chain, budget);
    const std::optional<ChainPlan> plan = plan_within(chain, budget);
    ASSERT_EQ(plan.has_value(), best.has_value()) << budget;
    if (plan) {
      ++feasible;
      ASSERT_EQ(plan->makespan, *best) << budget;
      ASSERT_LE(plan->peak, budget);
    }
  }
  EXPECT_GT(feasible, 1000);
  EXPECT_LT(feasible, 1900);
}

TEST(DynamicProgramming, FindsTheExactLeastBudgetOfDrawnChains) {
  std::mt19937_64 draw(8);
  for (int trial = 0; trial < 200; ++trial) {
    const CostChain chain = draw_chain(draw, {.most_stages = 5, .lean = true});
    const int64_t least = DynamicProgram(chain, 0).least_budget();
    EXPECT_TRUE(exhaustive_makespan(chain, least)) << trial;
    EXPECT_FALSE(exhaustive_makespan(chain, least - 1)) << trial;
  }
}

/// Longer chains than can be searched; sizes so large, or so many slots too few, that rounding
/// counts.
std::vector<std::pair<CostChain, int>> longer_chains() {
  std::vector<std::pair<CostChain, int>> chains;
  std::mt19937_64 draw(9);
  for (const int slots : {0, 0, 0, 37, 100, 100}) {
    chains.emplace_back(
        draw_chain(
            draw,
            {.least_stages = 8, .most_stages = 24, .lean = true, .largest = slots > 0 ? 9973 : 9}),
        slots);
  }
  return chains;
}

TEST(DynamicProgramming, IsNeverSlowerWithMoreBudgetAndNeverAboveIt) {
  for (const auto& [chain, slots] : longer_chains()) {
    const int64_t all = run_chain(chain, {}).peak;
    const DynamicProgram program(chain, all, slots);
    double fastest = std::numeric_limits<double>::infinity();
    double fastest_alone = fastest;
    for (int64_t step = 0; step <= 200; ++step) {
      const int64_t budget = program.least_budget() + (all - program.least_budget()) * step / 200;
      const ChainPlan plan = program.plan(budget);
      EXPECT_LE(plan.makespan, fastest) << budget;
      EXPECT_LE(plan.peak, budget);
      fastest = plan.makespan;
      if (step % 20 == 0) { // a table made for this budget alone loses less than a slot
        const ChainPlan alone = DynamicProgram(chain, budget, slots).plan(budget);
        EXPECT_LE(alone.peak, budget);
        EXPECT_LE(alone.makespan, std::min(plan.makespan, fastest_alone));
        fastest_alone = alone.makespan;
        if (slots == 0) {
          EXPECT_EQ(alone.segments, plan.segments);
        }
        const ChainReplay replay = replay_chain(chain, plan.segments);
        EXPECT_EQ(replay.peak, plan.peak);
        EXPECT_EQ(replay.makespan, plan.makespan);
      }
    }
  }
}

TEST(DynamicProgramming, RunsNothingAgainFromTheBudgetThatKeepsAllTapesOn) {
  for (const auto& [chain, slots] : longer_chains()) {
    double once = chain.loss_seconds;
    for (const ChainStage& stage : chain.stages) {
      once += stage.forward_seconds + stage.tapes.front().backward_seconds;
    }
    const int64_t all = run_chain(chain, {}).peak;
    for (const int64_t budget : {all, all + 1, 10 * all, kEndless}) {
      EXPECT_EQ(DynamicProgram(chain, budget, slots).plan(budget).makespan, once);
    }
  }
}

TEST(DynamicProgramming, RoundsOnlyUpwards) {
  std::mt19937_64 draw(10);
  for (int trial = 0; trial < 20; ++trial) {
    const CostChain chain = draw_chain(draw, {.least_stages = 6, .most_stages = 12, .largest = 50});
    const int64_t all = run_chain(chain, {}).peak;
    const DynamicProgram exact(chain, all);
    const DynamicProgram rounded(chain, all, 30);
    ASSERT_EQ(exact.slot_bytes(), 1);
    ASSERT_GT(rounded.slot_bytes(), 1);
    EXPECT_EQ(rounded.least_budget(), exact.least_budget());
    for (int64_t budget = exact.least_budget(); budget <= all; budget += 7) {
      const ChainPlan plan = rounded.plan(budget);
      EXPECT_LE(plan.peak, budget);
      EXPECT_GE(plan.makespan, exact.plan(budget).makespan);
    }
  }
}

CostChain scaled(CostChain chain, int64_t bytes, double seconds) {
  chain.input_bytes *= bytes;
  chain.loss_workspace *= bytes;
  chain.loss_gradient_bytes *= bytes;
  chain.loss_seconds *= seconds;
  for (ChainStage& stage : chain.stages) {
    stage.output_bytes *= bytes;
    stage.forward_workspace *= bytes;
    stage.gradient_bytes *= bytes;
    stage.forward_seconds *= seconds;
    for (TapeOption& tape : stage.tapes) {
      tape.bytes *= bytes;
      tape.forward_workspace *= bytes;
      tape.backward_workspace *= bytes;
      tape.backward_seconds *= seconds;
      tape.value_seconds *= seconds;
    }
  }
  return chain;
}

TEST(DynamicProgramming, DoesNotDependOnTheUnitsOfBytesAndSeconds) {
  std::mt19937_64 draw(11);
  for (int trial = 0; trial < 30; ++trial) {
    const CostChain chain = draw_chain(draw, {.least_stages = 4, .most_stages = 14, .lean = true});
    const CostChain large = scaled(chain, 1'000'003, 1);
    const CostChain slow = scaled(chain, 1, 64);
    const int64_t all = run_chain(chain, {}).peak;
    for (int64_t budget = DynamicProgram(chain, 0).least_budget(); budget <= all; budget += 3) {
      const ChainPlan plan = dynamic_programming(chain, budget);
      EXPECT_EQ(dynamic_programming(large, budget * 1'000'003).segments, plan.segments);
      EXPECT_EQ(dynamic_programming(slow, budget).makespan, 64 * plan.makespan);
    }
  }
}

/// The stage in two, with `middle` bytes between them, so that together they never need more than
/// it did: both its workspaces are at least `middle`.
CostChain with_split_stage(CostChain chain, size_t number, int64_t middle) {
  ChainStage& first = chain.stages[number];
  ChainStage second = first;
  TapeOption& tape = first.tapes.front();
  second.forward_seconds /= 2;
  first.forward_seconds /= 2;
  second.tapes.front().backward_seconds /= 2;
  tape.backward_seconds /= 2;
  tape.value_seconds = 0;
  first.gradient_bytes = 0;
  first.output_bytes = middle;
  first.forward_workspace = tape.forward_workspace = tape.backward_workspace = 0;
  tape.bytes -= second.output_bytes;
  second.tapes.front().bytes = second.output_bytes;
  second.forward_workspace -= middle;
  second.tapes.front().backward_workspace -= middle;
  chain.stages.insert(chain.stages.begin() + static_cast<std::ptrdiff_t>(number) + 1, second);
  return chain;
}

TEST(DynamicProgramming, IsNeverSlowerWithAStageSplit) {
  std::mt19937_64 draw(12);
  int faster = 0;
  for (int trial = 0; trial < 60; ++trial) {
    CostChain chain = draw_chain(draw, {.least_stages = 3, .most_stages = 9});
    const size_t number = draw() % chain.stages.size();
    ChainStage& stage = chain.stages[number];
    const int64_t middle = 2;
    stage.forward_seconds = 8;
    TapeOption& tape = stage.tapes.front();
    tape.value_seconds = trial % 5;
    tape.backward_seconds = 16;
    tape.bytes = stage.output_bytes + middle + 5;
    stage.forward_workspace += middle;
    tape.backward_workspace += middle;
    const CostChain split = with_split_stage(chain, number, middle);
    const int64_t all = run_chain(chain, {}).peak;
    for (int64_t budget = DynamicProgram(chain, 0).least_budget(); budget <= all; budget += 2) {
      const double whole = dynamic_programming(chain, budget).makespan;
      const double halves = dynamic_programming(split, budget).makespan;
      EXPECT_LE(halves, whole) << trial << ' ' << budget;
      faster += halves < whole;
    }
  }
  EXPECT_GT(faster, 0);
}

TEST(DynamicProgramming, ALeanTapeNeverHurtsAndSometimesHelps) {
  std::mt19937_64 draw(13);
  int faster = 0;
  for (int trial = 0; trial < 50; ++trial) {
    const CostChain chain = draw_chain(draw, {.least_stages = 4, .most_stages = 10, .lean = true});
    CostChain full = chain;
    for (ChainStage& stage : full.stages) {
      stage.tapes.resize(1);
    }
    const int64_t all = run_chain(full, {}).peak;
    for (int64_t budget = DynamicProgram(full, 0).least_budget(); budget <= all; budget += 5) {
      const double with = dynamic_programming(chain, budget).makespan;
      const double without = dynamic_programming(full, budget).makespan;
      EXPECT_LE(with, without);
      faster += with < without;
    }
  }
  EXPECT_GT(faster, 0);
}

TEST(DynamicProgramming, PlansTheLossAloneAndSizesOfNothing) {
  const CostChain loss{.input_bytes = 5, .loss_seconds = 2, .loss_workspace = 3};
  EXPECT_EQ(dynamic_programming(loss, 13).peak, 13); // input, its gradient, workspace
  EXPECT_EQ(dynamic_programming(loss, 13).makespan, 2);
  EXPECT_THROW(dynamic_programming(loss, 12), InfeasibleBudget);
  const CostChain nothing = equal_chain(4, 0, 0);
  EXPECT_EQ(dynamic_programming(nothing, 0).makespan, 12);
}

} // namespace
} // namespace palimpsest::testing
