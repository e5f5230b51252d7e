// Covers: launcher/compose/search.cc
// What a search leaves out without composing it is never what would have been the best.

#include <palimpsest/launcher/compose/search.h>

#include <palimpsest/core/plan/lockstep.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/gather.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace palimpsest {
namespace {

using Draw = std::mt19937_64;

int64_t draw_up_to(Draw& draw, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(draw);
}

double seconds(Draw& draw) {
  return static_cast<double>(draw_up_to(draw, 1, 64)) / 64;
}

void add_block(ModelCost& model, const std::string& name, Draw& draw, bool lean) {
  const int number = static_cast<int>(model.blocks.size());
  const int64_t parameters = draw_up_to(draw, 1, 400);
  model.units.push_back(
      {.name = name,
       .parameter_bytes = parameters,
       .gradient_bytes = parameters,
       .state_bytes = 2 * parameters,
       .update_seconds = seconds(draw) / 8});
  BlockCost block{
      .name = name,
      .reads = {{number - 1, 0}},
      .value_bytes = {draw_up_to(draw, 1, 60)},
      .units = {number},
      .lean_bytes = draw_up_to(draw, 10, 100),
      .forward_seconds = seconds(draw),
      .input_seconds = seconds(draw),
      .weight_seconds = seconds(draw)};
  block.full_bytes = block.lean_bytes + (lean ? draw_up_to(draw, 1, 200) : 0);
  block.lean_seconds = lean ? seconds(draw) / 2 : 0;
  block.forward_workspace = {
      draw_up_to(draw, 0, 40), draw_up_to(draw, 0, 40), draw_up_to(draw, 0, 40)};
  block.backward_workspace = block.forward_workspace;
  model.blocks.push_back(std::move(block));
}

/// Layers of one to three blocks of all sizes, or of equal ones.
ModelCost draw_model(Draw& draw) {
  ModelCost model;
  model.batch_bytes = draw_up_to(draw, 1, 20);
  add_block(model, "first", draw, false);
  const bool equal = draw_up_to(draw, 0, 1) == 0;
  const Draw start = draw;
  const auto layers = draw_up_to(draw, 2, 24);
  const auto blocks = draw_up_to(draw, 1, 3);
  for (int64_t layer = 0; layer < layers; ++layer) {
    Draw again = start;
    Draw& sizes = equal ? again : draw;
    const int begin = static_cast<int>(model.blocks.size());
    const std::string name = "layers." + std::to_string(layer);
    for (int64_t block = 0; block < blocks; ++block) {
      add_block(model, name + "." + std::to_string(block), sizes, block % 2 == 0);
    }
    model.layers.push_back(
        {.name = name, .blocks = {begin, static_cast<int>(model.blocks.size())}});
  }
  const int loss = static_cast<int>(model.blocks.size());
  model.blocks.push_back(
      {.name = "loss", .reads = {{loss - 1, 0}}, .forward_seconds = seconds(draw)});
  model.validate();
  return model;
}

Job draw_job(Draw& draw) {
  JobDescription description;
  description.model = draw_model(draw);
  description.stages = {{0, static_cast<int>(description.model.blocks.size())}};
  description.micro_batches = static_cast<int>(draw_up_to(draw, 1, 3));
  const int zero = static_cast<int>(draw_up_to(draw, 0, 3));
  const int ranks = static_cast<int>(draw_up_to(draw, 1, 3));
  description.placement.zero = zero;
  (zero > 0 ? description.mesh.shard : description.mesh.replicate) = ranks;
  description.links.communication = seconds(draw) / (draw_up_to(draw, 0, 1) == 0 ? 100 : 5000);
  description.links.communication_overlaps = draw_up_to(draw, 0, 2) > 0;
  return Job(std::move(description));
}

Evaluate evaluator(const Job& job, int blocks_ahead, int& composed) {
  return [&job, blocks_ahead, &composed](const Segments& segments) {
    ++composed;
    PlanOptions options;
    options.segments = segments;
    options.window = window_of_blocks(job, blocks_ahead);
    const Plans plans = compose(job, find_schedule("1f1b"), options);
    const PlanReport report = simulate_lockstep(plans, job);
    return step_cost(report, report.peak(TierId::kDevice));
  };
}

TEST(Search, NoPolicyIsFasterAtAnyBudgetAndNoneFitsWhereItFindsNothing) {
  const int jobs = std::getenv("PALIMPSEST_FULL") != nullptr ? 400 : 24;
  int searches = 0;
  int composed = 0;
  size_t settings = 0;
  for (int number = 0; number < jobs; ++number) {
    Draw draw(static_cast<uint64_t>(number));
    const Job job = draw_job(draw);
    int by_hand = 0;
    const int blocks_ahead = static_cast<int>(draw_up_to(draw, 1, 3));
    const Evaluate evaluate = evaluator(job, blocks_ahead, by_hand);
    std::vector<StepChoice> all = simple_choices(job.model());
    int64_t least = std::numeric_limits<int64_t>::max();
    for (StepChoice& choice : all) {
      choice.cost = evaluate(choice.segments);
      least = std::min(least, choice.cost.peak);
    }
    const int64_t most = all.front().cost.peak;
    for (int part = 0; part < 6; ++part) {
      const int64_t budget = least + (most - least) * part / 5;
      const StepChoice* fastest = nullptr;
      for (const StepChoice& choice : all) {
        if (choice.cost.peak <= budget &&
            (fastest == nullptr || choice.cost.seconds < fastest->cost.seconds)) {
          fastest = &choice;
        }
      }
      SCOPED_TRACE(fmt::format(
          "job {}, zero {}, {} ranks, budget {} of {} to {}, {} {}",
          number,
          job.placement().zero,
          job.mesh().world(),
          budget,
          least,
          most,
          fastest->policy,
          fastest->cost.seconds));
      const SearchResult found =
          search(job, "auto", budget, evaluator(job, blocks_ahead, composed));
      ASSERT_TRUE(found.best);
      EXPECT_LE(found.best->cost.peak, budget);
      EXPECT_LE(found.best->cost.seconds, fastest->cost.seconds) << found.best->policy;
      ++searches;
      settings += all.size();
    }
    // The least that a refusal names is enough, and one byte less is not.
    const int64_t named = search(job, "auto", 0, evaluate).least.cost.peak;
    EXPECT_LE(named, least) << number;
    EXPECT_TRUE(search(job, "auto", named, evaluate).best) << number;
    EXPECT_FALSE(search(job, "auto", named - 1, evaluate).best) << number;
  }
  EXPECT_LT(composed, settings / 2); // of which planners are asked too
  RecordProperty("composed_a_search", composed / searches);
  RecordProperty("settings_a_search", static_cast<int>(settings) / searches);
}

} // namespace
} // namespace palimpsest
