// Covers: memory/planners/replay.cc
#include <palimpsest/memory/planners/chain_run.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/memory/planners/replay.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/tests/memory/planners/chains.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gtest/gtest.h>

#include <random>

namespace palimpsest::testing {
namespace {

/// Published schedules name each operation; here they become segments.
Segments segments_of(
    const std::vector<std::pair<std::string, int>>& schedule,
    size_t& next,
    int end) {
  Segments segments;
  int stage = 0;
  while (next < schedule.size() && schedule[next].first != "LOSS" && schedule[next].first != "B") {
    const auto& [name, number] = schedule[next++];
    stage = number - 1;
    if (name == "Fall") {
      segments.push_back({{stage, stage + 1}, TapeMode::kFull, {}});
    } else if (name == "Fck") {
      segments.push_back({{stage, stage + 1}, TapeMode::kNone, {}});
    } else {
      segments.back().blocks.end = stage + 1;
    }
  }
  if (next < schedule.size() && schedule[next].first == "LOSS") {
    ++next;
  }
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    if (segment->tape == TapeMode::kNone) {
      segment->rerun = segments_of(schedule, next, segment->blocks.end);
    } else {
      ++next; // its B
    }
  }
  EXPECT_EQ(stage + 1, end);
  return segments;
}

TEST(ChainRun, RepeatsPublishedSchedules) {
  int schedules = 0;
  for (const RotorCase& rotor : rotor_cases()) {
    if (rotor.schedule.empty()) {
      continue;
    }
    ++schedules;
    size_t next = 0;
    const Segments segments = segments_of(rotor.schedule, next, rotor.chain.size());
    ASSERT_EQ(next, rotor.schedule.size());
    const ChainRun run = run_chain(rotor.chain, segments);
    EXPECT_EQ(run.peak, rotor.schedule_peak) << rotor.id;
    ASSERT_EQ(run.operations.size(), rotor.schedule.size());
    for (size_t op = 0; op < run.operations.size(); ++op) {
      const auto& [kind, stage, option] = run.operations[op];
      EXPECT_EQ(to_text(kind), rotor.schedule[op].first);
      EXPECT_EQ(kind == ChainOpKind::kLoss ? 0 : stage + 1, rotor.schedule[op].second);
    }
    const ChainReplay replay = replay_chain(rotor.chain, segments);
    EXPECT_EQ(replay.peak, rotor.schedule_peak) << rotor.id;
    EXPECT_EQ(replay.makespan, run.makespan) << rotor.id;
  }
  EXPECT_EQ(schedules, 6);
}

TEST(ChainRun, KeepsAllTapesAsPublished) {
  for (const RotorCase& rotor : rotor_cases()) {
    const ChainRun run = run_chain(rotor.chain, {});
    EXPECT_EQ(run.peak, rotor.all_tapes_peak) << rotor.id;
    EXPECT_EQ(run.makespan, rotor.all_tapes_makespan) << rotor.id;
    EXPECT_EQ(run.at_peak.total(), run.peak);
    EXPECT_EQ(replay_chain(rotor.chain, {}).peak, run.peak);
  }
}

/// A drawn tree of decisions for stages begin..end.
Segments draw_segments(std::mt19937_64& draw, BlockRange stages, bool nested) {
  Segments segments;
  const auto number = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(draw);
  };
  for (int next = stages.begin; next < stages.end;) {
    const int end = number(next + 1, stages.end);
    const bool again = number(0, 1) == 0 && !(nested && end == stages.end);
    const TapeMode tape = number(0, 1) == 0 ? TapeMode::kFull : TapeMode::kLean;
    const BlockRange blocks{next, end};
    segments.push_back(
        again ? Segment{blocks, TapeMode::kNone, draw_segments(draw, blocks, true)}
              : Segment{blocks, tape, {}});
    next = end;
  }
  return segments;
}

TEST(Replay, SimulateAgreesWithTheModelOfAChainOnDrawnPlans) {
  std::mt19937_64 draw(5);
  for (int trial = 0; trial < 500; ++trial) {
    const CostChain chain = draw_chain(draw, {.most_stages = 8, .lean = true});
    const Segments segments = draw_segments(draw, {0, chain.size()}, false);
    const ChainRun run = run_chain(chain, segments);
    const ChainReplay replay = replay_chain(chain, segments);
    ASSERT_EQ(replay.peak, run.peak) << trial;
    ASSERT_EQ(replay.makespan, run.makespan) << trial;
    ASSERT_EQ(run.at_peak.total(), run.peak);
  }
}

/// What chain_of() promises: its seconds, and no fewer bytes than simulate() finds beside the
/// states, whatever is decided; how many more there are at most, it returns.
int64_t expect_no_fewer(const Job& job, std::mt19937_64& draw) {
  const CostChain made = chain_of(job);
  int64_t always = 0; // gradients, where the first micro-batch leaves them to the others
  int64_t reduced = 0; // a whole one, whose reduction may take an operation longer
  for (int unit = 0; unit < static_cast<int>(job.model().units.size()); ++unit) {
    const Slot whole{SlotKind::kGradBuffer, unit};
    const bool sharded = job.placement().shards_gradients();
    always += job.micro_batches() > 1 ? job.size(sharded ? job.gradient(unit) : whole) : 0;
    reduced = std::max(reduced, job.placement().zero > 0 ? job.size(whole) : 0);
  }
  always += reduced;
  const auto before = static_cast<double>(job.model().terminal() - made.size()); // blocks of 1 s
  int64_t more = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const Segments segments = draw_segments(draw, {0, made.size()}, false);
    const Plans plans =
        compose(job, one_forward_one_backward(), {.segments = block_segments(segments, made)});
    const PlanReport report = simulate(plans, job);
    const ChainRun run = run_chain(made, segments);
    EXPECT_LE(report.peak(TierId::kDevice), run.peak + always);
    more = std::max(more, run.peak + always - report.peak(TierId::kDevice));
    EXPECT_DOUBLE_EQ(report.seconds, job.micro_batches() * (before + run.makespan));
  }
  return more;
}

TEST(ChainRun, NeverLiesBelowWhatSimulateFindsOfTheModel) {
  std::mt19937_64 draw(6);
  for (const std::string& name : model_names()) {
    ModelCost model = named_model(name);
    for (UnitCost& unit : model.units) {
      unit = {.gradient_bytes = unit.gradient_bytes, .frozen = unit.frozen};
    }
    JobDescription description{.model = model, .stages = even_stages(model, 1)};
    description.links = {.reduce_workspace = 0, .communication_overlaps = false};
    for (const int micro_batches : {1, 3}) {
      description.micro_batches = micro_batches;
      for (const int zero : {0, 1, 2}) {
        SCOPED_TRACE(fmt::format("{}, {} micro-batches, ZeRO-{}", name, micro_batches, zero));
        description.placement.zero = zero;
        description.mesh.shard = zero == 0 ? 1 : 2;
        expect_no_fewer(Job(description), draw);
      }
    }
  }
}

TEST(ChainRun, CountsGradientsOfWeightsWhereTheyAre) {
  // Weights weigh far more than all else, and as they grow all plans differ by little else.
  ModelCost model = named_model("decoder");
  for (UnitCost& unit : model.units) {
    unit = {.gradient_bytes = 1'000'000};
  }
  std::mt19937_64 draw(7);
  EXPECT_LT(expect_no_fewer(Job({.model = model, .stages = even_stages(model, 1)}), draw), 100);
}

TEST(ChainRun, TakesTheOnlyTapeWhereTheOneAskedForIsMissing) {
  CostChain chain = equal_chain(3, 1, 5);
  chain.stages[1].tapes[0].tape = TapeMode::kLean;
  for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
    const Segments segments{{{0, 3}, tape, {}}};
    EXPECT_EQ(run_chain(chain, segments).peak, run_chain(equal_chain(3, 1, 5), {}).peak);
    EXPECT_EQ(replay_chain(chain, segments).peak, run_chain(chain, segments).peak);
  }
}

TEST(ChainRun, RefusesSegmentsOutOfOrder) {
  const CostChain chain = equal_chain(3, 1, 5);
  EXPECT_THROW(run_chain(chain, {recomputed({1, 2}), recomputed({0, 1})}), InternalError);
  EXPECT_THROW(run_chain(chain, {recomputed({1, 4})}), InternalError);
}

} // namespace
} // namespace palimpsest::testing
