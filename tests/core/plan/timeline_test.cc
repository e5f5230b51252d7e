#include <palimpsest/core/plan/timeline.h>

#include <palimpsest/tests/support/plan/examples.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace palimpsest::testing {
namespace {

/// Two blocks of 2 and 3 seconds forward, 5 backward, and a head; parameters arrive at 0.1 s a byte.
Job two_blocks(bool overlaps) {
  ModelCost model;
  model.batch_bytes = 10;
  model.units = {{.name = "w", .parameter_bytes = 20, .gradient_bytes = 20, .state_bytes = 40}};
  model.blocks.push_back(
      {.name = "first",
       .reads = {{kLoader, 0}},
       .value_bytes = {3},
       .full_bytes = 50,
       .forward_seconds = 2,
       .input_seconds = 5});
  model.blocks.push_back({.name = "head", .reads = {{0, 0}}, .units = {0}, .forward_seconds = 3});
  LinkCosts links{.communication = 0.1};
  links.communication_overlaps = overlaps;
  return Job(
      {.model = model,
       .stages = {{0, 2}},
       .mesh = {.shard = 2},
       .placement = {.zero = 3},
       .links = links,
       .training = false});
}

// The gather of 20 bytes moves the half that is missing: 1 second, beside the first block where
// communication overlaps, before it where it does not.
TEST(Timeline, SaysWhenEachOperationRunsAndOnWhichLane) {
  const StepPlan plan = parse_plan(
      "LOAD mb=0\n"
      "GATHER unit=0\n"
      "FORWARD block=0 mb=0 tape=none yields={0}\n"
      "FORWARD block=1 mb=0 tape=none yields={}\n"
      "DROP slot=value(loader,0,mb=0) tier=device\n"
      "DROP slot=value(0,0,mb=0) tier=device\n"
      "RELEASE unit=0\n");
  for (const bool overlaps : {true, false}) {
    const Job job = two_blocks(overlaps);
    const WorldPlans world = {&plan, &plan};
    const Timeline timeline = trace(world, job, 1);
    ASSERT_EQ(timeline.ops.size(), plan.size());
    const double start = overlaps ? 0 : 1;
    EXPECT_EQ(timeline.ops[0].lane, std::nullopt);
    EXPECT_EQ(timeline.ops[1].lane, overlaps ? Lane::kCommunication : Lane::kCompute);
    EXPECT_DOUBLE_EQ(timeline.ops[1].begin, 0);
    EXPECT_DOUBLE_EQ(timeline.ops[1].end, 1);
    EXPECT_EQ(timeline.ops[2].lane, Lane::kCompute);
    EXPECT_DOUBLE_EQ(timeline.ops[2].begin, start);
    EXPECT_DOUBLE_EQ(timeline.ops[2].end, start + 2);
    EXPECT_DOUBLE_EQ(timeline.ops[3].begin, start + 2);
    EXPECT_DOUBLE_EQ(timeline.ops[3].end, start + 5);
    EXPECT_DOUBLE_EQ(timeline.seconds, start + 5);
    EXPECT_EQ(timeline.ops[3].bytes[PlanCategory::kParam], 20);
    EXPECT_EQ(timeline.ops[3].bytes[PlanCategory::kParamShard], 10);
    EXPECT_EQ(timeline.ops[3].bytes[PlanCategory::kValue], 13);
    EXPECT_EQ(timeline.ops[0].bytes[PlanCategory::kParam], 0);
  }
}

// On every example: categories add up to the operation's bytes, lanes to the rank's busy seconds, no
// lane does two things at once, and nothing else is told than simulate() tells.
TEST(Timeline, AgreesWithTheReportOnEveryExample) {
  for (const std::string& model : model_names()) {
    for (const int zero : {0, 2, 3}) {
      const Case example = make(
          {.model = model,
           .ranks = 2,
           .policy = "sqrt",
           .zero = zero,
           .shard = 2,
           .links = {.communication = 0.01}});
      const Plans plans = example.plans();
      const WorldPlans world = spread(plans, example.job.mesh());
      const PlanReport report = simulate(world, example.job);
      for (int rank = 0; rank < example.job.mesh().world(); ++rank) {
        const Timeline timeline = trace(world, example.job, rank);
        const RankReport& told = report.ranks[static_cast<size_t>(rank)];
        ASSERT_EQ(timeline.ops.size(), told.device_bytes.size());
        EXPECT_EQ(timeline.seconds, report.seconds);
        EXPECT_EQ(timeline.rank.device_bytes, told.device_bytes);
        EnumArray<Lane, double, kLanes> busy{};
        EnumArray<Lane, double, kLanes> last{};
        for (size_t op = 0; op < timeline.ops.size(); ++op) {
          const TimelineOp& entry = timeline.ops[op];
          EXPECT_EQ(
              std::accumulate(entry.bytes.begin(), entry.bytes.end(), int64_t{0}),
              told.device_bytes[op]);
          EXPECT_LE(entry.end, timeline.seconds);
          if (entry.lane) {
            EXPECT_GE(entry.begin, last[*entry.lane] - 1e-9);
            last[*entry.lane] = entry.end;
            busy[*entry.lane] += entry.end - entry.begin;
          }
        }
        for (size_t lane = 0; lane < busy.size(); ++lane) {
          EXPECT_NEAR(busy[static_cast<Lane>(lane)], told.busy[static_cast<Lane>(lane)], 1e-9);
        }
      }
    }
  }
}

} // namespace
} // namespace palimpsest::testing
