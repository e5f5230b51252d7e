// Covers: launcher/compose/world_search.cc

#include <palimpsest/launcher/compose/world_search.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/models/decoder_cost.h>
#include <palimpsest/core/plan/device_room.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/launcher/compose/planning.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/gather.h>
#include <palimpsest/tests/launcher/world/world_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using testing::small_request;
using ::testing::ThrowsMessage;

constexpr int64_t kMiB = int64_t{1} << 20;

std::string text_of(const WorldLayout& layout) {
  return fmt::format(
      "zero {} {}x{} micro {}x{} {}",
      layout.zero,
      layout.mesh.shard,
      layout.mesh.replicate,
      layout.micro_batch,
      layout.accumulation,
      layout.choice.policy);
}

/// Every layout that fits, fastest first, each asked for alone.
std::vector<WorldLayout> all_layouts(const WorldRequest& request, int world, int64_t most_samples) {
  std::vector<WorldLayout> all;
  for (int zero = 0; zero <= 3; ++zero) {
    for (int shard = 1; shard <= world; ++shard) {
      for (int64_t micro = 1; micro <= most_samples; micro *= 2) {
        if (world % shard != 0 || (shard > 1) != (zero > 0)) {
          continue;
        }
        WorldRequest one = request;
        one.zero = zero;
        one.shard = shard;
        one.micro_batch = micro;
        for (WorldLayout& layout : WorldSearch(one).best(world, 10)) {
          all.push_back(std::move(layout));
        }
      }
    }
  }
  std::ranges::stable_sort(all, std::greater(), &WorldLayout::tokens_per_second);
  return all;
}

TEST(WorldSearch, FindsWhatTryingEverythingFinds) {
  for (const int64_t budget : {24 * kMiB, 40 * kMiB, 200 * kMiB}) {
    WorldRequest request = small_request();
    request.budget = budget;
    request.global_batch = 8 * 16;
    const std::vector<WorldLayout> all = all_layouts(request, 8, 16);
    WorldSearch search(request);
    const std::vector<WorldLayout> best = search.best(8, 5);
    ASSERT_EQ(best.size(), std::min<size_t>(5, all.size())) << budget;
    for (size_t index = 0; index < best.size(); ++index) {
      EXPECT_EQ(best[index].tokens_per_second, all[index].tokens_per_second)
          << budget << ": " << text_of(best[index]) << " against " << text_of(all[index]);
    }
    const WorldSearch::Counts& counts = search.counts();
    EXPECT_EQ(counts.without_room + counts.too_slow + counts.searched, counts.layouts);
    EXPECT_LT(counts.searched, counts.layouts);
  }
}

/// Of a micro-batch: ids and labels of 8 bytes each.
int64_t bytes_of_samples(const WorldRequest& request, const WorldLayout& layout) {
  return 2 * 8 * layout.micro_batch * request.tokens;
}

/// The same layout, as a run plans it.
PlanReport run_report(const WorldRequest& request, const WorldLayout& layout, int micro_batches) {
  const RunConfig config = load_config_text(
      fmt::format(
          "model: {{preset: tiny}}\n"
          "data: {{files: [x.txt]}}\n"
          "optimizer: {{learning_rate: 1}}\n"
          "parallel: {{zero: {}}}\n",
          layout.zero),
      "test.yaml");
  const ModelCost cost = analytic_cost(
      request.model,
      {.samples = layout.micro_batch,
       .tokens = request.tokens,
       .decoder = request.decoder,
       .moment_count = request.moment_count},
      device_speed(request.hardware, request.decoder.compute));
  const PlanBook book(config, cost, layout.mesh);
  return book.report_with(micro_batches, layout.choice.segments);
}

// Beside the plan's peak there are the samples that it has not loaded yet.
TEST(WorldSearch, PeaksAreThoseOfARunsPlanAndWithinTheBudget) {
  WorldRequest request = small_request();
  request.budget = 24 * kMiB;
  request.global_batch = 8 * 4;
  bool recomputes = false;
  for (const WorldLayout& layout : all_layouts(request, 8, 4)) {
    SCOPED_TRACE(text_of(layout));
    const PlanReport report = run_report(request, layout, static_cast<int>(layout.accumulation));
    EXPECT_EQ(layout.rank.peak[TierId::kDevice], report.peak(TierId::kDevice));
    EXPECT_GE(layout.choice.cost.peak, report.peak(TierId::kDevice));
    EXPECT_LE(
        layout.choice.cost.peak,
        report.peak(TierId::kDevice) + layout.accumulation * bytes_of_samples(request, layout));
    EXPECT_LE(layout.choice.cost.peak, room_for_plans(request.budget));
    const RankReport& rank = report.ranks.front();
    const double useful = rank.forward_flops + rank.backward_flops;
    EXPECT_NEAR(layout.mfu * layout.choice.cost.seconds * 1e12, useful, 1e-9 * useful);
    recomputes = recomputes || layout.rank.recompute_flops > 0;
  }
  EXPECT_TRUE(recomputes);
}

Job job_of(const WorldRequest& request, const WorldLayout& layout, int micro_batches) {
  JobDescription description;
  description.model = analytic_cost(
      request.model,
      {.samples = layout.micro_batch, .tokens = request.tokens, .decoder = request.decoder},
      device_speed(request.hardware, at::kBFloat16));
  for (UnitCost& unit : description.model.units) {
    unit.update_seconds /= layout.mesh.shard;
  }
  description.stages = {{0, static_cast<int>(description.model.blocks.size())}};
  description.micro_batches = micro_batches;
  description.mesh = layout.mesh;
  description.placement.zero = layout.zero;
  return Job(std::move(description));
}

/// A step composed and simulated by hand.
StepCost by_hand(
    const WorldRequest& request,
    const WorldLayout& layout,
    int micro_batches,
    const Segments& segments) {
  const Job job = job_of(request, layout, micro_batches);
  PlanOptions options;
  options.segments = segments;
  options.window = window_of_blocks(job, 3);
  const Plans plans = compose(job, find_schedule("1f1b"), options);
  const PlanReport report = simulate_lockstep(plans, job, link_seconds(request.hardware));
  return {.peak = peak_with_samples(plans, report, job), .seconds = report.seconds};
}

// A step of many micro-batches is extended from three.
TEST(WorldSearch, LongStepsAreWhatSimulatingAllOfThemGives) {
  WorldRequest request = small_request();
  request.micro_batch = 1;
  request.accumulation = 9;
  for (const int zero : {0, 1, 2, 3}) {
    for (const int64_t budget : {24 * kMiB, 64 * kMiB}) {
      request.zero = zero;
      request.budget = budget;
      for (const WorldLayout& layout : WorldSearch(request).best(8, 10)) {
        SCOPED_TRACE(text_of(layout));
        const StepCost whole = by_hand(request, layout, 9, layout.choice.segments);
        EXPECT_NEAR(layout.choice.cost.seconds, whole.seconds, 1e-3 * whole.seconds);
        EXPECT_EQ(layout.choice.cost.peak, whole.peak);
        EXPECT_NEAR(
            layout.tokens_per_second,
            8 * 9 * 256 / layout.choice.cost.seconds,
            1e-6 * layout.tokens_per_second);
      }
    }
  }
}

// What the search leaves out for want of room, the whole search of a run finds no plan for either.
TEST(WorldSearch, LeavesOutOnlyWhatNoPolicyFits) {
  WorldRequest request = small_request();
  request.accumulation = 1;
  request.micro_batch = 4;
  int fitting = 0;
  int cases = 0;
  for (const int zero : {0, 1, 2, 3}) {
    const WorldLayout layout{
        .zero = zero,
        .mesh = {.replicate = zero == 0 ? 8 : 1, .shard = zero == 0 ? 1 : 8},
        .micro_batch = 4};
    const auto evaluate = [&](const Segments& again) { return by_hand(request, layout, 1, again); };
    for (int64_t budget = 14 * kMiB; budget <= 62 * kMiB; budget += 3 * kMiB) {
      request.zero = zero;
      request.shard = layout.mesh.shard;
      request.budget = budget;
      const int64_t room = room_for_plans(budget);
      const bool fits = search(job_of(request, layout, 1), "auto", room, evaluate).best.has_value();
      EXPECT_EQ(!WorldSearch(request).best(8, 20).empty(), fits) << zero << " " << budget;
      fitting += fits ? 1 : 0;
      ++cases;
    }
  }
  EXPECT_GT(fitting, cases / 4);
  EXPECT_LT(fitting, cases);
}

TEST(WorldSearch, TheSmallestWorldIsTheFirstThatFits) {
  for (const int64_t budget : {9 * kMiB, 12 * kMiB, 30 * kMiB, 100 * kMiB}) {
    WorldRequest request = small_request();
    request.budget = budget;
    const std::optional<WorldLayout> smallest = WorldSearch(request).smallest(64);
    ASSERT_TRUE(smallest) << budget;
    EXPECT_LE(smallest->choice.cost.peak, budget);
    int first = 0;
    for (int world = 1; first == 0; ++world) {
      WorldRequest one = request;
      one.micro_batch = 1;
      one.zero = world == 1 ? 0 : 3;
      one.shard = world;
      first = WorldSearch(one).best(world, 1).empty() ? 0 : world;
    }
    EXPECT_EQ(smallest->mesh.world(), first) << budget;
  }
  WorldRequest planned = small_request();
  planned.budget = 12 * kMiB;
  const int any_policy = WorldSearch(planned).smallest(64)->mesh.world();
  planned.policy = "revolve";
  EXPECT_GE(WorldSearch(planned).smallest(64)->mesh.world(), any_policy);
  WorldRequest hopeless = small_request();
  hopeless.budget = 1 * kMiB;
  EXPECT_FALSE(WorldSearch(hopeless).smallest(1024));
  EXPECT_TRUE(WorldSearch(hopeless).best(64, 10).empty());
}

TEST(WorldSearch, TheLeanestLayoutIsWhatTheLeastBudgetIsFor) {
  for (const std::optional<int> zero : {std::optional<int>(), std::optional<int>(1)}) {
    for (const std::optional<int64_t> batch :
         {std::optional<int64_t>(), std::optional<int64_t>(48)}) {
      for (const int world : {1, 8}) {
        WorldRequest request = small_request();
        request.zero = zero;
        request.global_batch = batch;
        request.budget = 1;
        const WorldLayout leanest = WorldSearch(request).leanest(world);
        SCOPED_TRACE(text_of(leanest));
        request.budget = least_budget(leanest.choice.cost.peak);
        EXPECT_FALSE(WorldSearch(request).best(world, 1).empty());
        --request.budget;
        EXPECT_TRUE(WorldSearch(request).best(world, 1).empty());
      }
    }
  }
}

TEST(WorldSearch, RefusesWhatNoWorldCanDo) {
  WorldRequest request = small_request();
  request.global_batch = 12;
  EXPECT_THAT(
      [&] { WorldSearch(request).best(8, 10); },
      ThrowsMessage<UserError>(HasSubstr("12 samples cannot be shared by 8 ranks")));
  request.global_batch = 16;
  request.micro_batch = 3;
  EXPECT_THAT(
      [&] { WorldSearch(request).best(8, 10); },
      ThrowsMessage<UserError>(HasSubstr("in equal micro-batches of 3")));
  request = small_request();
  request.zero = 3;
  request.shard = 5;
  EXPECT_THAT(
      [&] { WorldSearch(request).best(8, 10); },
      ThrowsMessage<UserError>(HasSubstr("no mesh of 8 ranks has zero 3, 5 shards")));
}

RunConfig config_of(const std::string& more) {
  return load_config_text(
      "data: {files: [nothing-there.txt], sequence_length: 64}\n"
      "optimizer: {learning_rate: 1}\n" +
          more,
      "test.yaml");
}

TEST(WorldRequest, TakesFromTheConfigWhatItFixesAndOpensNoData) {
  const Hardware hardware = small_request().hardware;
  const WorldRequest open = world_request(config_of("model: {preset: tiny}\n"), hardware);
  EXPECT_EQ(open.tokens, 64);
  EXPECT_EQ(open.moment_count, 2);
  EXPECT_EQ(open.model.hidden_size, 64);
  EXPECT_EQ(open.policy, "auto");
  EXPECT_EQ(open.budget, 64 * kMiB);
  EXPECT_FALSE(open.zero || open.shard || open.replicate || open.prefetch);
  EXPECT_FALSE(open.global_batch || open.micro_batch || open.accumulation);
  const WorldRequest fixed = world_request(
      config_of("model: {preset: tiny}\n"
                "precision: bf16\n"
                "memory: {device_budget: 1MiB}\n"
                "activation_checkpointing: revolve\n"
                "training: {global_batch_size: 32, micro_batch_size: 2}\n"
                "parallel: {zero: 3, shard: 4, prefetch: 100}\n"),
      hardware);
  EXPECT_EQ(fixed.decoder.compute, at::kBFloat16);
  EXPECT_EQ(fixed.budget, kMiB);
  EXPECT_EQ(fixed.policy, "revolve");
  EXPECT_EQ(fixed.global_batch, 32);
  EXPECT_EQ(fixed.micro_batch, 2);
  EXPECT_EQ(fixed.zero, 3);
  EXPECT_EQ(fixed.shard, 4);
  EXPECT_EQ(fixed.prefetch, 100);
  EXPECT_THAT(
      [&] {
        world_request(
            config_of("model: {preset: tiny}\nactivation_checkpointing: full\n"), hardware);
      },
      ThrowsMessage<UserError>(HasSubstr("activation_checkpointing is full")));
  EXPECT_THAT(
      [&] {
        world_request(
            config_of("model: {family: mlp, input_size: 2, output_size: 2, hidden_size: 2, "
                      "num_hidden_layers: 2}\n"),
            hardware);
      },
      ThrowsMessage<UserError>(HasSubstr("model.family is mlp")));
}

} // namespace
} // namespace palimpsest
