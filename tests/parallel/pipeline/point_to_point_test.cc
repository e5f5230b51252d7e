// Covers: parallel/pipeline/schedule_plan.cc

#include <palimpsest/parallel/pipeline/point_to_point.h>

#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/parallel/pipeline/schedule_plan.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gtest/gtest.h>

#include <map>

namespace palimpsest::testing {
namespace {

TEST(PointToPoint, ConnectsTwoStages) {
  ModelCost model = chain({.layers = 2, .per_layer = 1});
  const Job job(
      {.model = model,
       .stages = layer_stages(model, 2),
       .micro_batches = 1,
       .mesh = {.pipeline = 2}});
  const Plans plans = point_to_point_pass(schedule_plans(one_forward_one_backward(), job), job, {});
  EXPECT_EQ(
      to_text(plans[0]),
      "LOAD mb=0\n"
      "FORWARD block=0 mb=0 tape=full yields={0}\n"
      "FORWARD block=1 mb=0 tape=full yields={0}\n"
      "SEND slot=value(1,0,mb=0) peer=1\n"
      "RECV slot=grad(1,0,mb=0) peer=1\n"
      "BACKWARD block=1 mb=0 part=both\n"
      "BACKWARD block=0 mb=0 part=both\n");
  EXPECT_EQ(
      to_text(plans[1]),
      "LOAD mb=0\n"
      "RECV slot=value(1,0,mb=0) peer=0\n"
      "FORWARD block=2 mb=0 tape=full yields={0}\n"
      "FORWARD block=3 mb=0 tape=full yields={}\n"
      "BACKWARD block=2 mb=0 part=both\n"
      "SEND slot=grad(1,0,mb=0) peer=0\n");
}

TEST(PointToPoint, SendsEachSkipOncePerReader) {
  const Case example = make(
      {.ranks = 3,
       .micro_batches = 3,
       .away = "activations",
       .own = chain({.layers = 6, .per_layer = 1, .skips = true})});
  const Plans plans = example.plans();
  EXPECT_NO_THROW(simulate(plans, example.job));
  int skips = 0;
  for (const StepPlan& plan : plans) {
    std::map<std::pair<Slot, int>, int> sent;
    std::map<Slot, int> stashed;
    for (const Op& op : plan) {
      if (op.kind == OpKind::kSend) {
        EXPECT_EQ(++sent[std::pair(op.slot, op.peer)], 1) << to_text(op);
        skips += op.slot.kind == SlotKind::kValue && op.slot.index == 1;
      } else if (op.kind == OpKind::kStash) {
        EXPECT_EQ(++stashed[op.slot], 1) << to_text(op);
      }
    }
  }
  EXPECT_EQ(
      skips,
      2 * 3); // blocks 1 and 2 on the first rank feed blocks 6 and 5 on the last one: once a micro-batch
}

TEST(SchedulePlan, AFrozenPrefixHasNoBackwardTapeOrRerun) {
  const Case example = make({.model = "frozen_prefix", .policy = "full", .zero = 3});
  int forwards = 0;
  const Plans plans = example.plans();
  for (const Op& op : plans[0]) {
    if (op.block >= 0 && op.block < 5) {
      EXPECT_EQ(op.kind, OpKind::kForward);
      EXPECT_EQ(op.tape, TapeMode::kNone);
      ++forwards;
    }
  }
  EXPECT_EQ(forwards, 5 * 2);
}

} // namespace
} // namespace palimpsest::testing
