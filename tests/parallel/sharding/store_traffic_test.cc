// Covers: core/plan/traffic.cc
//
// What the store really sends, against the plan's count and the closed forms.

#include <palimpsest/core/plan/traffic.h>

#include <palimpsest/parallel/comm/counting.h>
#include <palimpsest/tests/parallel/sharding/store_steps.h>
#include <palimpsest/tests/support/ranks/ranks.h>

#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

namespace palimpsest::testing {
namespace {

struct Found {
  Traffic counted; // in one step, on rank 0
  PlanTraffic planned;
};

Found step(const StoreChoice& choice) {
  Found found;
  on_ranks(choice.mesh.world(), [&](std::unique_ptr<Communicator> engine, MemoryContext& memory) {
    const auto traffic = std::make_shared<Traffic>();
    CountingCommunicator world(std::move(engine), traffic);
    StoreSteps steps(&world, memory, choice, [&](int unit) {
      int64_t numel = 1;
      for (const int64_t size : choice.shapes[static_cast<size_t>(unit)]) {
        numel *= size;
      }
      return at::zeros({numel});
    });
    *traffic = {}; // what filling the parameters cost
    steps.run([&](int unit, int) { return at::zeros({steps.unit(unit).numel()}); });
    if (world.rank() == 0) {
      found = {*traffic, plan_traffic(steps.plan(), steps.job())};
    }
  });
  return found;
}

/// Units whose parts need no padding on up to four ranks.
constexpr int64_t kPart = 4096 * 12;
const std::vector<std::vector<int64_t>> kShapes{{2 * kPart}, {3 * kPart}, {kPart}};
constexpr int64_t kElements = 6 * kPart;
constexpr int64_t kHead = kPart; // gathered once for its forward and gradients together

TEST(StoreTraffic, AStepMovesTwiceTheParametersAndThreeTimesWithZero3) {
  for (const int ranks : {2, 3, 4}) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(fmt::format("{} ranks, zero {}, recompute {}", ranks, zero, recompute));
        StoreChoice choice{
            .zero = zero, .recompute = recompute, .frozen = false, .shapes = kShapes};
        choice.mesh = resolve_mesh(ranks, {.zero = zero});
        const Traffic counted = step(choice).counted;
        // in elements of the whole, as the paper counts: a rank itself holds 1 / ranks of them
        const int64_t volume = counted.bytes() / 4 / (ranks - 1) * ranks;
        EXPECT_EQ(volume, zero < 3 ? 2 * kElements : 3 * kElements - kHead);
        using enum CommKind;
        EXPECT_EQ(counted[kAllReduce].calls, zero == 0 ? 3 : 0);
        EXPECT_EQ(counted[kReduceScatter].calls, zero == 0 ? 0 : 3);
        EXPECT_EQ(counted[kAllGather].calls, zero == 0 ? 0 : zero < 3 ? 3 : 2 * 3 - 1);
      }
    }
  }
}

TEST(StoreTraffic, ShardedGradientsAreScatteredPerMicroBatch) {
  for (int zero = 1; zero <= 3; ++zero) {
    const Found found = step(
        {.mesh = {.shard = 2},
         .zero = zero,
         .micro_batches = 3,
         .frozen = false,
         .shapes = kShapes});
    EXPECT_EQ(found.counted[CommKind::kReduceScatter].calls, zero == 1 ? 3 : 9);
  }
}

TEST(StoreTraffic, AWindowForAllGathersOncePerStep) {
  for (const bool recompute : {false, true}) {
    const Found found = step(
        {.mesh = {.shard = 2},
         .zero = 3,
         .micro_batches = 3,
         .window = 1'000'000'000,
         .recompute = recompute,
         .frozen = false,
         .shapes = kShapes});
    EXPECT_EQ(found.counted[CommKind::kAllGather].calls, 3);
    EXPECT_EQ(found.planned.gathers.operations, 3);
  }
}

TEST(StoreTraffic, CountedIsPlanned) {
  for (const Mesh& mesh :
       {Mesh{.replicate = 2},
        Mesh{.shard = 2},
        Mesh{.shard = 3},
        Mesh{.replicate = 2, .shard = 2}}) {
    for (int zero = mesh.shard > 1 ? 1 : 0; zero <= 3; ++zero) {
      for (const bool reproducible : {false, true}) {
        const StoreChoice choice{
            .mesh = mesh,
            .zero = zero,
            .reproducible = reproducible,
            .dtype = at::kBFloat16,
            .micro_batches = 2,
            .frozen = false,
            .shapes = {{5000}, {9}, {20'000}, {1}}};
        SCOPED_TRACE(to_text(choice));
        const auto [counted, planned] = step(choice);
        EXPECT_EQ(static_cast<double>(counted.bytes()), planned.bytes());
        using enum CommKind;
        const int64_t pieces =
            reproducible && mesh.replicate > 1 ? planned.shard_sums.operations : 0;
        EXPECT_EQ(
            counted[kAllGather].calls,
            planned.gathers.operations + planned.publishes.operations + pieces);
        EXPECT_EQ(counted[kReduceScatter].calls, planned.shard_sums.operations);
        EXPECT_EQ(counted[kAllReduce].calls, planned.replica_sums.operations);
        EXPECT_EQ(
            counted[kReduceScatter].calls > 0,
            zero > 0 ? mesh.shard > 1 || reproducible : reproducible);
      }
    }
  }
}

} // namespace
} // namespace palimpsest::testing
