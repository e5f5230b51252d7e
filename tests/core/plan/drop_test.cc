// Covers: life.cc

#include <palimpsest/core/plan/drop.h>

#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>

namespace palimpsest::testing {
namespace {

/// The plan with every DROP of a sent slot moved to right after its last SEND or other use.
StepPlan with_eager_drops(const StepPlan& plan, const Job& job) {
  StepPlan result = plan;
  for (size_t at = 0; at < result.size(); ++at) {
    const Op drop = result[at];
    if (drop.kind != OpKind::kDrop) {
      continue;
    }
    size_t last = at;
    while (last > 0) {
      const auto used = effects(result[last - 1], job);
      if (std::any_of(used.begin(), used.end(), [&](const Effect& effect) {
            return effect.place == Place{drop.slot, drop.tier};
          })) {
        break;
      }
      --last;
    }
    if (result[last - 1].kind == OpKind::kSend) {
      std::rotate(
          result.begin() + static_cast<std::ptrdiff_t>(last),
          result.begin() + static_cast<std::ptrdiff_t>(at),
          result.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  }
  return result;
}

TEST(Drop, RightAfterTheSendWouldDeadlock) {
  std::map<std::string, int> stuck;
  int total = 0;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb_h1"}) {
    for (int ranks = 2; ranks <= 4; ++ranks) {
      for (int batches = 1; batches <= 5; ++batches) {
        for (const char* model : {"decoder", "unet"}) {
          const Case example = make(
              {.model = model, .schedule = schedule, .ranks = ranks, .micro_batches = batches});
          Plans plans = example.plans();
          ASSERT_NO_THROW(simulate(plans, example.job));
          for (StepPlan& plan : plans) {
            plan = with_eager_drops(plan, example.job);
          }
          ++total;
          try {
            simulate(plans, example.job);
          } catch (const PlanError& error) {
            EXPECT_THAT(error.what(), ::testing::HasSubstr("deadlock"));
            ++stuck[schedule];
          }
        }
      }
    }
  }
  EXPECT_EQ(total, 120);
  int sum = 0;
  for (const auto& [schedule, count] : stuck) {
    std::cout << schedule << ": " << count << " of 30 jobs deadlock\n";
    sum += count;
  }
  EXPECT_EQ(sum, 76);
  EXPECT_GT(stuck["1f1b"], 0);
}

TEST(Drop, ALagBuysTheOverlap) {
  struct Trial {
    Choice choice;
    double eager;
    double lagged;
    int64_t memory;
  };
  const LinkCosts links{.communication = 0.08, .copy = 0.1};
  const ModelCost model = chain({.layers = 8, .per_layer = 1});
  for (const Trial& trial :
       {Trial{{.away = "activations", .links = links, .own = model}, 67.4, 56.0, 0},
        Trial{{.zero = 2, .shard = 4, .links = links, .own = model}, 74.0, 60.3, 15}}) {
    const auto run = [&](int lag) {
      Choice choice = trial.choice;
      choice.lag = lag;
      const Case example = make(choice);
      return simulate(example.plans(), example.job);
    };
    EXPECT_NEAR(run(0).seconds, trial.eager, 0.05);
    EXPECT_NEAR(run(1).seconds, trial.lagged, 0.05);
    EXPECT_NEAR(run(2).seconds, trial.lagged, 0.05); // one timed operation gives all the gain
    EXPECT_EQ(run(1).peak(TierId::kDevice) - run(0).peak(TierId::kDevice), trial.memory);
  }
}

} // namespace
} // namespace palimpsest::testing
