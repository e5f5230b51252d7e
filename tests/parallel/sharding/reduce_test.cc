#include <palimpsest/parallel/sharding/reduce.h>

#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/parallel/pipeline/schedule_plan.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

namespace palimpsest::testing {
namespace {

Job eight_layers(int zero) {
  const ModelCost model = chain({.layers = 8, .per_layer = 1});
  return Job(
      {.model = model,
       .stages = even_stages(model, 1),
       .micro_batches = 4,
       .mesh = {.shard = 4},
       .placement = {.zero = zero}});
}

/// `late`: REDUCE waits for the last micro-batch, as it does where gradients are whole.
RankReport report(int zero, bool late) {
  const Job job = eight_layers(zero);
  const Job unsharded = eight_layers(1);
  const PlanOptions options{.lag = 0};
  Plans plans = schedule_plans(one_forward_one_backward(), job);
  for (const PlanPass& pass : passes()) {
    plans = pass.apply(plans, late && pass.name == "reduce" ? unsharded : job, options);
  }
  return simulate(plans, job).ranks[0];
}

TEST(Reduce, PerMicroBatchIsWhatMakesShardedGradientsSaveMemory) {
  // by hand: ten units of 12 bytes are whole at the end of a late plan, one at a time in an early
  // one
  for (const auto& [zero, early, late] : {std::tuple(2, 279, 360), std::tuple(3, 245, 326)}) {
    const RankReport soon = report(zero, false);
    const RankReport at_last = report(zero, true);
    EXPECT_EQ(soon.category[TierId::kDevice][PlanCategory::kGradBuffer], 12);
    EXPECT_EQ(at_last.category[TierId::kDevice][PlanCategory::kGradBuffer], 120);
    EXPECT_EQ(soon.peak[TierId::kDevice], early);
    EXPECT_EQ(at_last.peak[TierId::kDevice], late);
  }
}

std::vector<ReduceAxis> axes(const StepPlan& plan, int unit) {
  std::vector<ReduceAxis> found;
  for (const Op& op : plan) {
    if (op.kind == OpKind::kReduce && op.unit == unit) {
      found.push_back(op.axis);
    }
  }
  return found;
}

TEST(Reduce, ATiedUnitIsJoinedOnceAfterItsShards) {
  using enum ReduceAxis;
  Choice choice{.model = "tied", .micro_batches = 3, .zero = 2};
  EXPECT_THAT(axes(make(choice).plans()[0], 0), ::testing::ElementsAre(kShard, kShard, kShard));
  choice.ranks = 2;
  for (const StepPlan& plan : make(choice).plans()) {
    EXPECT_THAT(axes(plan, 0), ::testing::ElementsAre(kShard, kShard, kShard, kTie));
  }
  choice.replicate = 2;
  EXPECT_THAT(
      axes(make(choice).plans()[0], 0),
      ::testing::ElementsAre(kShard, kShard, kShard, kReplicate, kTie));
  choice.zero = 0; // whole gradients: once, at the end
  EXPECT_THAT(axes(make(choice).plans()[0], 0), ::testing::ElementsAre(kReplicate, kTie));
}

TEST(Reduce, ReproducibleSumsTakeOneMicroBatchAtATime) {
  Choice choice{.micro_batches = 3, .replicate = 2, .reproducible = true};
  const StepPlan plan = make(choice).plans()[0];
  int next = 0;
  for (const Op& op : plan) {
    if (op.kind == OpKind::kReduce && op.unit == 2) {
      EXPECT_EQ(op.axis, ReduceAxis::kShard);
      EXPECT_EQ(op.mbs, (MicroBatchRange{next, next + 1}));
      ++next;
    }
  }
  EXPECT_EQ(next, 3);
}

// The head adds to a tied unit in all forwards before the embedding's first backward.
TEST(Reduce, AScheduleThatMixesMicroBatchesIsRefusedWhereSumsAreReproducible) {
  const ModelCost model = named_model("tied");
  const Job job(
      {.model = model, .stages = even_stages(model, 1), .micro_batches = 2, .reproducible = true});
  EXPECT_THAT(
      [&] { compose(job, find_schedule("gpipe"), {}); },
      ::testing::ThrowsMessage<UserError>(::testing::HasSubstr("micro-batches [0, 2)")));
  EXPECT_NO_THROW(compose(job, find_schedule("1f1b"), {}));
}

} // namespace
} // namespace palimpsest::testing
