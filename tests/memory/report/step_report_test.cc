#include <palimpsest/memory/report/step_report.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;

Report report_of(const Case& example, int rank = 0) {
  const Plans plans = example.plans();
  const Mesh& mesh = example.job.mesh();
  Report report;
  add_step(
      report,
      example.job,
      plans[static_cast<size_t>(mesh.pipeline_rank(rank))],
      trace(spread(plans, mesh), example.job, rank));
  return report;
}

std::vector<std::string> choices(const Report& report) {
  std::vector<std::string> found;
  for (const ReportLayer& layer : report.layers) {
    found.push_back(layer.choice);
  }
  return found;
}

/// Four layers of two blocks: tapes of 8 bytes, values of 1, a second a forward.
Case four_layers(const std::string& policy) {
  return make({.model = "decoder", .policy = policy});
}

// A layer that keeps all leaves two tapes of 8 bytes and two values of 1; the last one's second
// value is spent by the head before any BACKWARD.
TEST(StepReport, TellsWhatEachLayerLeaves) {
  const Report kept = report_of(four_layers("none"));
  EXPECT_THAT(choices(kept), ElementsAre("kept", "kept", "kept", "kept"));
  const auto last = [](const Report& report, const ReportLayer& layer) {
    return &layer == &report.layers.back();
  };
  for (const ReportLayer& layer : kept.layers) {
    EXPECT_EQ(layer.bytes, last(kept, layer) ? 17 : 18);
    EXPECT_EQ(layer.full_bytes, layer.bytes);
    EXPECT_EQ(layer.seconds, 0);
  }
  // Each runs again by itself, so the next one's input stays: the value of its second block.
  const Report full = report_of(four_layers("full"));
  EXPECT_THAT(choices(full), ElementsAre("recomputed", "recomputed", "recomputed", "recomputed"));
  for (const ReportLayer& layer : full.layers) {
    EXPECT_EQ(layer.bytes, last(full, layer) ? 0 : 1);
    EXPECT_EQ(layer.full_bytes, last(full, layer) ? 17 : 18);
    EXPECT_DOUBLE_EQ(layer.seconds, 2);
  }
  const Report lean = report_of(four_layers("keep_lean"));
  EXPECT_THAT(choices(lean), ElementsAre("lean", "lean", "lean", "lean"));
  for (const ReportLayer& layer : lean.layers) {
    EXPECT_EQ(layer.bytes, last(lean, layer) ? 9 : 10); // tapes of 4
    EXPECT_DOUBLE_EQ(layer.seconds, 1); // half a second a block
  }
}

TEST(StepReport, LayersBeforeTheFirstTrainableParameterAreFrozen) {
  const Report report = report_of(make({.model = "frozen_prefix", .policy = "none"}));
  ASSERT_FALSE(report.layers.empty());
  EXPECT_EQ(report.layers.front().choice, "frozen");
  EXPECT_EQ(report.layers.front().full_bytes, 0);
  EXPECT_EQ(report.layers.back().choice, "kept");
}

TEST(StepReport, EveryRankTellsItsOwnLayers) {
  const Case example = make({.model = "decoder", .ranks = 2, .policy = "full"});
  const Report first = report_of(example, 0);
  const Report second = report_of(example, 1);
  EXPECT_EQ(first.layers.size() + second.layers.size(), 4U);
  EXPECT_EQ(first.layers.front().name, example.job.model().layers.front().name);
  EXPECT_EQ(second.layers.back().name, example.job.model().layers.back().name);
}

TEST(StepReport, NamesOperationsAndTellsRerunsApart) {
  const Case example = four_layers("full");
  const Report report = report_of(example);
  const StepPlan plan = example.plans().front();
  ASSERT_EQ(report.ops.size(), plan.size());
  int64_t reruns = 0;
  for (size_t op = 0; op < plan.size(); ++op) {
    EXPECT_EQ(parse_op(report.ops[op].text), plan[op]);
    if (plan[op].block >= 0) {
      EXPECT_EQ(
          report.ops[op].subject,
          example.job.model().blocks[static_cast<size_t>(plan[op].block)].name);
    }
    if (plan[op].unit >= 0) {
      EXPECT_EQ(
          report.ops[op].subject,
          example.job.model().units[static_cast<size_t>(plan[op].unit)].name);
    }
    reruns += report.ops[op].kind == "recompute";
  }
  const PlanReport totals = simulate(example.plans(), example.job);
  EXPECT_EQ(reruns, totals.ranks[0].reruns);
  EXPECT_GT(reruns, 0);
  EXPECT_EQ(report.summary.predicted_peak_bytes, totals.ranks[0].peak[TierId::kDevice]);
  EXPECT_EQ(report.summary.predicted_step_s, totals.seconds);
}

TEST(StepReport, MeasurementsAreOfTheSameOperations) {
  Report report = report_of(four_layers("none"));
  EXPECT_THROW(add_measured(report, std::vector<TracedOp>(3)), InternalError);
  std::vector<TracedOp> ops(report.ops.size());
  ops[1] = {.begin_s = 1, .end_s = 2, .peak_bytes = 77};
  add_measured(report, ops);
  EXPECT_THAT(report.measured[1], Field(&MeasuredOp::bytes, 77));
  EXPECT_EQ(report.measured[1].end_s, 2);
}

} // namespace
} // namespace palimpsest::testing
