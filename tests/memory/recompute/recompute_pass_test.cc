// Covers: core/plan/closed_forms.cc

#include <palimpsest/memory/recompute/recompute_pass.h>

#include <palimpsest/core/plan/closed_forms.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/memory/recompute/policies.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace palimpsest::testing {
namespace {

struct Outcome {
  StepPlan plan;
  RankReport report;
};

Outcome run(const ModelCost& model, const Segments& segments, int micro_batches = 1) {
  const Job job({.model = model, .stages = even_stages(model, 1), .micro_batches = micro_batches});
  const Plans plans = compose(job, one_forward_one_backward(), {.segments = segments});
  return {plans[0], simulate(plans, job).ranks[0]};
}

TEST(Recompute, ExecutesTwoNWithAllTapesAndThreeNMinusKWithKKept) {
  constexpr int kLayers = 12;
  const ModelCost model = chain({.layers = kLayers, .per_layer = 2});
  std::vector<std::pair<Segments, int>> cases{
      // segments and layers kept
      {none(model, {}), kLayers},
      {full(model, {}), 0},
      {full(model, {.rerun_tape = TapeMode::kLean}), 0},
      {sqrt_layers(model, {}), 4}, // round(3.46) = 3 segments
      {named_segments("nested", model), -kLayers / 2}}; // half of the layers run a third time
  for (const int n : {1, 2, 3, 4, 6, 12}) {
    cases.emplace_back(every_n(model, {.n = n}), n);
    cases.emplace_back(every_n(model, {.n = n, .keep_last_segment = false}), 0);
    cases.emplace_back(uniform(model, {.segments = n}), kLayers / n);
  }
  for (int kept = 0; kept <= kLayers; ++kept) {
    cases.emplace_back(key_layers(model, {.count = kept}), kept);
  }
  for (const auto& [segments, kept] : cases) {
    for (const int batches : {1, 3}) {
      const auto [plan, report] = run(model, segments, batches);
      const auto ran = std::count_if(plan.begin(), plan.end(), [&](const Op& op) {
        return is_compute(op.kind) && op.block > 0 && op.block < model.terminal();
      });
      EXPECT_EQ(ran, 2 * batches * executions(kLayers, kept)); // two blocks a layer
      EXPECT_EQ(report.reruns, ran - 2 * batches * 2 * kLayers);
    }
  }
}

TEST(Recompute, KeepsTheTapesOfKLayers) {
  constexpr int kLayers = 12;
  const ModelCost model = chain({.layers = kLayers, .per_layer = 1});
  const auto tapes = [&](const Segments& segments) {
    // one byte more: the embedding's tape, which is no layer's
    return run(model, segments).report.category[TierId::kDevice][PlanCategory::kTape] - 1;
  };
  const int64_t all = tapes(none(model, {}));
  EXPECT_EQ(all, tape_bytes(kLayers, 8));
  for (int kept = 1; kept <= kLayers; ++kept) {
    const int64_t found = tapes(key_layers(model, {.count = kept}));
    EXPECT_EQ(found, tape_bytes(kept, 8));
    EXPECT_DOUBLE_EQ(
        static_cast<double>(found) / static_cast<double>(all), tape_ratio(kLayers, kept));
  }
  EXPECT_EQ(tapes(full(model, {})), tape_bytes(0, 8)); // one at a time
}

TEST(Recompute, TheSquareRootIsTheBestIntervalOfAUniformChain) {
  for (const int root : {2, 3, 4, 5, 6}) {
    const int count = root * root;
    // an input is as large as a tape, nothing else weighs anything, and no tape needs what its
    // block read
    ModelCost model = chain({.layers = count, .per_layer = 1, .saves_nothing = true});
    for (UnitCost& unit : model.units) {
      unit = {};
    }
    constexpr int64_t kBytes = 1000;
    for (BlockCost& block : model.blocks) {
      block.forward_workspace = {};
      block.backward_workspace = {};
      block.full_bytes = kBytes;
      std::fill(block.value_bytes.begin(), block.value_bytes.end(), kBytes);
    }
    model.blocks.front().full_bytes = 0;
    model.batch_bytes = 0;
    std::vector<int64_t> peaks;
    for (int n = 1; n <= count; ++n) {
      const Outcome found = run(model, every_n(model, {.n = n, .keep_last_segment = false}));
      peaks.push_back(found.report.peak[TierId::kDevice]);
      // beside inputs and tapes: one gradient, and the value under way
      const int64_t formula = interval_bytes(count, n, kBytes, kBytes);
      EXPECT_LE(std::abs(peaks.back() - formula), 2 * kBytes) << count << ' ' << n;
    }
    EXPECT_EQ(best_interval(count, kBytes, kBytes), root);
    EXPECT_EQ(peaks[static_cast<size_t>(root) - 1], *std::min_element(peaks.begin(), peaks.end()))
        << count;
    EXPECT_LE(
        run(model, sqrt_layers(model, {})).report.peak[TierId::kDevice],
        peaks[static_cast<size_t>(root) - 1]);
  }
}

TEST(Recompute, AnInputAsLargeAsFourTapesMovesTheBestInterval) {
  EXPECT_EQ(best_interval(16, 4, 1), 8); // sqrt(16 * 4)
  EXPECT_EQ(best_interval(16, 1, 4), 2);
  EXPECT_EQ(interval_bytes(16, 4, 1, 1), 8);
}

TEST(Recompute, WritesAgainOnlyWhatItsSegmentReads) {
  const ModelCost model = chain({.layers = 4, .per_layer = 1});
  const StepPlan plan = run(model, {recomputed({1, 3})}).plan;
  std::vector<Op> reruns;
  for (const Op& op : plan) {
    if (op.kind == OpKind::kForward && (op.block == 1 || op.block == 2) &&
        op.tape == TapeMode::kFull) {
      reruns.push_back(op);
    }
  }
  const std::vector<Op> expected{
      Op::forward(1, 0, TapeMode::kFull, {0}), Op::forward(2, 0, TapeMode::kFull, {})};
  EXPECT_EQ(reruns, expected); // block 3, which reads what 2 writes, has kept it
}

} // namespace
} // namespace palimpsest::testing
