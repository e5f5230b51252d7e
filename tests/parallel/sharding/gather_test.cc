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

/// Blocks whose computation begins with their parameters asked for only then.
int unhidden(const StepPlan& plan, OpKind kind) {
  int count = 0;
  for (size_t index = 1; index < plan.size(); ++index) {
    count += plan[index].kind == kind && plan[index - 1] == Op::gather(plan[index].block);
  }
  return count;
}

// While a block computes, the next one's parameters arrive, in forward and backward.
TEST(Gather, AWindowOfAFewBlocksGathersAhead) {
  Choice choice{.micro_batches = 1, .zero = 3, .shard = 2};
  const Job job = make(choice).job;
  int64_t fewest = 1000;
  for (const int blocks : {1, 2, 3}) {
    choice.window = window_of_blocks(job, blocks);
    EXPECT_EQ(choice.window, blocks * 6);
    const StepPlan plan = make(choice).plans()[0];
    EXPECT_EQ(unhidden(plan, OpKind::kForward), blocks == 1 ? 10 : 0);
    EXPECT_EQ(unhidden(plan, OpKind::kBackward), blocks == 1 ? 8 : 0);
    const int64_t gathers =
        std::ranges::count(plan, OpKind::kGather, [](const Op& op) { return op.kind; });
    EXPECT_LT(gathers, fewest);
    fewest = gathers;
  }
  EXPECT_EQ(window_of_blocks(job, 100), 10 * 6);
  EXPECT_EQ(window_of_blocks(make({.model = "tied", .zero = 3, .shard = 2}).job, 100), 9 * 6);
}

/// How often units must be gathered where `room` of them may stay, by Belady's rule.
int64_t fewest_gathers(const std::vector<int>& uses, size_t room) {
  int64_t misses = 0;
  std::vector<int> held;
  for (size_t now = 0; now < uses.size(); ++now) {
    if (std::ranges::find(held, uses[now]) != held.end()) {
      continue;
    }
    ++misses;
    if (held.size() == room) {
      const auto next = [&](int unit) {
        return std::find(uses.begin() + static_cast<ptrdiff_t>(now), uses.end(), unit);
      };
      held.erase(std::ranges::max_element(
          held, [&](int one, int other) { return next(one) < next(other); }));
    }
    held.push_back(uses[now]);
  }
  return misses;
}

TEST(Gather, LookingAheadCostsNoGathers) {
  for (int micro_batches = 1; micro_batches <= 3; ++micro_batches) {
    std::vector<int> uses;
    for (int mb = 0; mb < micro_batches; ++mb) {
      for (int block = 0; block <= 9; ++block) {
        uses.push_back(block);
      }
      for (int block = 8; block >= 1; --block) { // the embedding's backward reads no weights
        uses.push_back(block);
      }
    }
    for (int64_t room = 1; room <= 11; ++room) {
      const Case example =
          make({.micro_batches = micro_batches, .zero = 3, .shard = 2, .window = room * 6});
      const StepPlan plan = example.plans()[0];
      const int64_t gathers =
          std::ranges::count(plan, OpKind::kGather, [](const Op& op) { return op.kind; });
      EXPECT_EQ(gathers, fewest_gathers(uses, static_cast<size_t>(room)));
      const PlanReport report = simulate(example.plans(), example.job);
      EXPECT_LE(report.ranks[0].category[TierId::kDevice][PlanCategory::kParam], room * 6);
      EXPECT_EQ(unhidden(plan, OpKind::kForward), room == 1 ? 10 * micro_batches : 0);
    }
  }
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
