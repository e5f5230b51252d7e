// One rank for all its data-parallel peers: what simulate() finds with every rank.

#include <palimpsest/core/plan/lockstep.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/traffic.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace palimpsest::testing {
namespace {

void expect_equal(const RankReport& one, const RankReport& all) {
  EXPECT_EQ(one.peak, all.peak);
  EXPECT_EQ(one.category, all.category);
  EXPECT_EQ(one.at_peak, all.at_peak);
  EXPECT_EQ(one.activation_peak, all.activation_peak);
  EXPECT_EQ(one.device_bytes, all.device_bytes);
  EXPECT_EQ(one.forwards, all.forwards);
  EXPECT_EQ(one.reruns, all.reruns);
  EXPECT_EQ(one.busy, all.busy);
  EXPECT_EQ(one.forward_flops, all.forward_flops);
  EXPECT_EQ(one.backward_flops, all.backward_flops);
  EXPECT_EQ(one.recompute_flops, all.recompute_flops);
}

std::vector<Choice> choices() {
  std::vector<Choice> all;
  const std::vector<std::string> policies = {"none", "full", "sqrt", "lean", "nested"};
  size_t number = 0;
  for (const char* model : {"decoder", "tied", "unet", "frozen_prefix"}) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (const auto& [replicate, shard] : {std::pair(1, 1), {3, 1}, {1, 4}, {2, 3}}) {
        Choice choice{.model = model, .ranks = 1 + static_cast<int>(number % 3)};
        choice.micro_batches = 1 + static_cast<int>(number % 4);
        choice.policy = policies[number % policies.size()];
        choice.zero = zero;
        choice.replicate = replicate;
        choice.shard = shard;
        choice.window = number % 2 == 0 ? 0 : 24;
        choice.links.communication = 0.25;
        choice.links.communication_overlaps = number % 3 != 0;
        all.push_back(std::move(choice));
        ++number;
      }
    }
  }
  return all;
}

TEST(Lockstep, FindsWhatSimulatingEveryRankFinds) {
  for (const Choice& choice : choices()) {
    SCOPED_TRACE(to_text(choice));
    const Case example = make(choice);
    const Plans plans = example.plans();
    const PlanReport all = simulate(plans, example.job);
    const PlanReport one = simulate_lockstep(plans, example.job);
    EXPECT_EQ(one.seconds, all.seconds);
    const Mesh& mesh = example.job.mesh();
    ASSERT_EQ(one.ranks.size(), static_cast<size_t>(mesh.pipeline));
    for (int rank = 0; rank < mesh.world(); ++rank) {
      SCOPED_TRACE(rank);
      expect_equal(
          one.ranks[static_cast<size_t>(mesh.pipeline_rank(rank))],
          all.ranks[static_cast<size_t>(rank)]);
    }
  }
}

// The same network said in both ways.
TEST(Lockstep, TakesTheSecondsOfCommunicationThatItIsGiven) {
  Choice choice{.policy = "full", .zero = 3, .shard = 4};
  const Case silent = make(choice);
  choice.links.communication = 0.5;
  const Case slow = make(choice);
  const double expected = simulate(slow.plans(), slow.job).seconds;
  const LinkSeconds seconds = [](const Op& op, const Job& job) {
    return 0.5 * moved_bytes(op, job);
  };
  EXPECT_EQ(simulate_lockstep(silent.plans(), silent.job, seconds).seconds, expected);
  EXPECT_GT(expected, simulate_lockstep(silent.plans(), silent.job).seconds);
}

TEST(Lockstep, AWorldCostsNoMoreThanARank) {
  const Case example =
      make({.micro_batches = 3, .policy = "sqrt", .zero = 3, .replicate = 64, .shard = 1024});
  const PlanReport report = simulate_lockstep(example.plans(), example.job);
  EXPECT_EQ(report.ranks.size(), 1U);
  EXPECT_GT(report.seconds, 0);
}

// Without any one operation that frees, sums, updates or agrees, a plan is refused.
TEST(Lockstep, RefusesWhatOneRankBreaksByItself) {
  const Case example = make({.policy = "full", .zero = 3, .shard = 4});
  const Plans plans = example.plans();
  const auto needed = [](const Op& op) {
    return op.kind == OpKind::kDrop || op.kind == OpKind::kReduce || op.kind == OpKind::kUpdate ||
        op.kind == OpKind::kAgree || op.kind == OpKind::kGather || op.kind == OpKind::kCommit;
  };
  int refused = 0;
  for (size_t index = 0; index < plans[0].size(); ++index) {
    if (needed(plans[0][index])) {
      Plans broken = plans;
      broken[0].erase(broken[0].begin() + static_cast<ptrdiff_t>(index));
      EXPECT_THROW(simulate_lockstep(broken, example.job), PlanError) << to_text(plans[0][index]);
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

} // namespace
} // namespace palimpsest::testing
