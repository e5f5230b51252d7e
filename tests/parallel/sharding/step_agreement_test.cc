#include <palimpsest/parallel/sharding/step_agreement.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/parallel/comm/counting.h>
#include <palimpsest/tests/support/ranks/ranks.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace palimpsest::testing {
namespace {

using ::testing::ElementsAre;

std::vector<double> norm_parts(const at::Tensor& gradient) {
  return FoldedNorm(2).measure(gradient);
}

void append(std::vector<double>& to, const std::vector<double>& parts) {
  to.insert(to.end(), parts.begin(), parts.end());
}

// A unit of squared norm 9 and one of 16: 5, however many replicas hold them.
TEST(StepAgreement, ReplicasAreNotCountedAgain) {
  std::vector<at::Tensor> gradients{at::zeros({10'000}), at::zeros({3})};
  gradients[0][1] = 1; // in the first rank's shard
  gradients[0][9'999] = std::sqrt(8.0F); // in the last chunk
  gradients[1][2] = 4;
  std::vector<double> whole;
  for (const at::Tensor& gradient : gradients) {
    append(whole, norm_parts(gradient));
  }
  for (const Mesh& mesh :
       {Mesh{.replicate = 4},
        Mesh{.replicate = 2, .shard = 2},
        Mesh{.shard = 4},
        Mesh{.shard = 3}}) {
    on_ranks(mesh.world(), [&](Communicator& world, MemoryContext& memory) {
      const MeshGroups groups = split_world(world, mesh);
      std::vector<UnitLayout> layouts;
      Agreement mine{.losses = {0}};
      for (const at::Tensor& gradient : gradients) {
        layouts.push_back(cut_unit(gradient.numel(), mesh.shard));
        const ElementRange own = layouts.back().range(groups.shard_rank());
        append(mine.norm_parts, norm_parts(gradient.narrow(0, own.begin, own.size())));
      }
      StepAgreement agreement(layouts, groups, memory);
      const Agreement all = agreement.agree(mine);
      EXPECT_EQ(all.norm_parts, whole);
      EXPECT_FLOAT_EQ(static_cast<float>(FoldedNorm(2).fold(all.norm_parts)), 5);
    });
  }
}

TEST(StepAgreement, LossesComeInTheOrderOfGlobalMicroBatches) {
  for (const Mesh& mesh :
       {Mesh{.replicate = 4}, Mesh{.shard = 4}, Mesh{.replicate = 2, .shard = 2}}) {
    on_ranks(4, [&](Communicator& world, MemoryContext& memory) {
      const MeshGroups groups = split_world(world, mesh);
      StepAgreement agreement({}, groups, memory);
      const double first = groups.data_rank();
      const Agreement all = agreement.agree({.losses = {first, 4 + first, 8 + first}});
      EXPECT_THAT(all.losses, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
      EXPECT_TRUE(all.finite);
    });
  }
}

TEST(StepAgreement, OneRankThatIsNotFiniteDecidesForAll) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int bad = 0; bad < 3; ++bad) {
    on_ranks(3, [&](Communicator& world, MemoryContext& memory) {
      const MeshGroups groups = split_world(world, {.replicate = 3});
      StepAgreement agreement({}, groups, memory);
      const bool mine = world.rank() == bad;
      const Agreement all = agreement.agree({.finite = !mine, .losses = {mine ? nan : 1}});
      EXPECT_FALSE(all.finite);
      EXPECT_TRUE(std::isnan(all.losses[static_cast<size_t>(bad)]));
    });
  }
}

TEST(StepAgreement, OneRankOutOfMemoryIsKnownToAll) {
  for (int short_of_memory = 0; short_of_memory < 3; ++short_of_memory) {
    on_ranks(3, [&](Communicator& world, MemoryContext& memory) {
      const MeshGroups groups = split_world(world, {.replicate = 3});
      StepAgreement agreement({}, groups, memory);
      const Agreement all = agreement.agree(
          {.exhausted = world.rank() == short_of_memory, .norm_parts = {}, .losses = {1}});
      EXPECT_TRUE(all.exhausted);
      EXPECT_FALSE(agreement.agree({.losses = {1}}).exhausted);
    });
  }
}

// Sends nothing before it has all the room it needs, so it may be called again.
TEST(StepAgreement, OutOfMemoryItMayBeCalledAgain) {
  for (int64_t k = 1; k <= 2; ++k) {
    on_ranks(2, [&](Communicator& world, MemoryContext& memory) {
      const MeshGroups groups = split_world(world, {.shard = 2});
      StepAgreement agreement({cut_unit(5000, 2)}, groups, memory);
      const int64_t own = cut_unit(5000, 2).range(world.rank()).size();
      const Agreement mine{
          .norm_parts = std::vector<double>(static_cast<size_t>((own + 4095) / 4096), 3.0),
          .losses = {1.0 + world.rank()}};
      if (world.rank() == 1) {
        memory.set_allocation_hook(fail_at_allocation(k));
        EXPECT_THROW(agreement.agree(mine), c10::OutOfMemoryError);
      }
      EXPECT_EQ(agreement.agree(mine).losses, (std::vector<double>{1, 2}));
    });
  }
}

// 8 bytes for each chunk of 16 KiB of gradients, for each loss and flag: no more than that.
TEST(StepAgreement, CostsLittle) {
  on_ranks(2, [](Communicator&, MemoryContext&) {}); // the allocator is ours from here on
  auto world = in_process_world(2);
  std::vector<std::thread> threads;
  for (auto& engine : world) {
    threads.emplace_back([&engine] {
      const auto traffic = std::make_shared<Traffic>();
      CountingCommunicator counting(std::move(engine), traffic);
      MemoryContext memory("rank");
      const MeshGroups groups = split_world(counting, {.shard = 2});
      const int64_t elements = 4096 * 100;
      StepAgreement agreement({cut_unit(elements, 2)}, groups, memory);
      agreement.agree({.norm_parts = std::vector<double>(50), .losses = {1, 2}});
      EXPECT_EQ((*traffic)[CommKind::kAllGather], (TrafficCount{2, 50 * 8 + 4 * 8}));
      EXPECT_EQ(traffic->bytes(), 54 * 8);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(StepAgreement, PartsOfOtherUnitsAreRefused) {
  on_ranks(1, [](Communicator&, MemoryContext& memory) {
    StepAgreement alone({cut_unit(10, 1)}, {}, memory);
    EXPECT_EQ(alone.agree({.norm_parts = {1}, .losses = {2}}).losses, std::vector<double>{2});
    EXPECT_THROW(StepAgreement({}, {.mesh = {.pipeline = 2}}, memory), InternalError);
  });
  for (const size_t count : {0, 3}) {
    EXPECT_THROW(
        on_ranks(
            2,
            [&](Communicator& world, MemoryContext& memory) {
              const MeshGroups groups = split_world(world, {.shard = 2});
              StepAgreement agreement({cut_unit(4096 * 4, 2)}, groups, memory);
              agreement.agree({.norm_parts = std::vector<double>(count), .losses = {1}});
            }),
        InternalError);
  }
}

} // namespace
} // namespace palimpsest::testing
