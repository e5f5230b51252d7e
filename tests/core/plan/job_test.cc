// Covers: cost_model.cc

#include <palimpsest/core/plan/job.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace palimpsest::testing {
namespace {

using ::testing::ElementsAre;

JobDescription describe(const std::string& model, int stages) {
  JobDescription description{.model = named_model(model)};
  description.stages = even_stages(description.model, stages);
  return description;
}

TEST(Job, KnowsWhatNeedsABackward) {
  const Job job(describe("frozen_prefix", 1));
  for (int block = 0; block <= job.model().terminal(); ++block) {
    EXPECT_EQ(job.differentiable(block), block >= 5); // embedding and two layers of two are frozen
  }
  EXPECT_TRUE(job.graded_reads(5).empty());
  EXPECT_THAT(job.graded_reads(6), ElementsAre(ValueRef{5, 0}));
}

TEST(Job, SizesFollowZeroAndTheGroup) {
  JobDescription description = describe("decoder", 1);
  description.mesh.shard = 5;
  description.placement.zero = 3;
  const Job job(description);
  EXPECT_EQ(job.size({.kind = SlotKind::kParam, .owner = 1}), 6);
  EXPECT_EQ(job.size({.kind = SlotKind::kParamShard, .owner = 1}), 2); // 6 over 5, rounded up
  EXPECT_EQ(job.size({.kind = SlotKind::kGradShard, .owner = 1}), 3);
  EXPECT_EQ(job.size({.kind = SlotKind::kOptimizerState, .owner = 1}), 8);
  EXPECT_EQ(job.size({.kind = SlotKind::kTape, .owner = 1, .mb = 0}, TapeMode::kLean), 4);
  EXPECT_EQ(job.size({.kind = SlotKind::kTape, .owner = 1, .mb = 0}, TapeMode::kFull), 8);
}

TEST(Job, GroupsCoverTheMesh) {
  JobDescription description = describe("tied", 2);
  description.mesh = {.pipeline = 2, .replicate = 2, .shard = 3};
  description.placement.zero = 2;
  const Job job(description);
  EXPECT_THAT(job.group(7, Op::gather(1)).ranks, ElementsAre(6, 7, 8));
  EXPECT_THAT(
      job.group(7, Op::reduce(0, {0, 1}, ReduceAxis::kReplicate)).ranks, ElementsAre(7, 10));
  EXPECT_THAT(job.group(7, Op::reduce(0, {0, 1}, ReduceAxis::kTie)).ranks, ElementsAre(1, 7));
  EXPECT_EQ(job.group(7, Op::agree()).ranks.size(), 12U);
  EXPECT_TRUE(job.has_axis(0, ReduceAxis::kTie));
  EXPECT_FALSE(job.has_axis(1, ReduceAxis::kTie));
}

// 10,000 elements are three chunks: parts of two for two ranks, so four in all.
TEST(Job, SizesOfUnitsWithKnownElementsHoldTheirPadding) {
  JobDescription description = describe("decoder", 1);
  UnitCost& unit = description.model.units[1];
  unit = {
      .elements = 10'000,
      .parameter_bytes = 20'000,
      .gradient_bytes = 40'000,
      .state_bytes = 120'000};
  const auto size = [&](SlotKind kind) { return Job(description).size({kind, 1}); };
  EXPECT_EQ(size(SlotKind::kParam), 20'000);
  EXPECT_EQ(size(SlotKind::kOptimizerState), 120'000);
  description.mesh.shard = 2;
  description.placement.zero = 3;
  EXPECT_EQ(size(SlotKind::kParam), 2 * 4 * 4096);
  EXPECT_EQ(size(SlotKind::kParamShard), 2 * 2 * 4096);
  EXPECT_EQ(size(SlotKind::kGradBuffer), 4 * 4 * 4096);
  EXPECT_EQ(size(SlotKind::kGradShard), 4 * 2 * 4096);
  EXPECT_EQ(size(SlotKind::kOptimizerState), 12 * 8192); // the first rank's; states have no padding
  description.mesh.replicate = 3;
  description.reproducible = true; // a shard is three pieces
  EXPECT_EQ(size(SlotKind::kGradShard), 4 * 3 * 4096);
  EXPECT_EQ(size(SlotKind::kOptimizerState), 120'000); // the first rank owns it all
  unit.frozen = true;
  EXPECT_EQ(size(SlotKind::kParamShard), 2 * 2 * 4096);
  description.placement.zero = 2;
  EXPECT_EQ(size(SlotKind::kParam), 20'000); // never exchanged
}

TEST(Job, ReproducibleSumsTakeAllDataParallelRanks) {
  JobDescription description = describe("decoder", 2);
  description.mesh = {.pipeline = 2, .replicate = 2, .shard = 3};
  description.placement.zero = 1;
  description.reproducible = true;
  const Job job(description);
  const Op reduce = Op::reduce(1, {0, 1}, ReduceAxis::kShard);
  EXPECT_THAT(job.group(7, reduce).ranks, ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_THAT(job.group(7, Op::publish(1)).ranks, ElementsAre(6, 7, 8));
  EXPECT_EQ(job.axis_ranks(1, ReduceAxis::kShard), 6);
  EXPECT_FALSE(job.has_axis(1, ReduceAxis::kReplicate));
  description.mesh = {.pipeline = 2, .replicate = 6};
  description.placement.zero = 0; // whole states, but a running sum beside the buffer
  EXPECT_TRUE(Job(description).has_axis(1, ReduceAxis::kShard));
  EXPECT_EQ(Job(description).gradient(1).kind, SlotKind::kGradShard);
  EXPECT_TRUE(Job(description).reduces_each_micro_batch());
}

/// Replicas of one shard count next to each other, so a unit's N parts lie in their shards.
TEST(Job, BatchRanksNumberThePiecesOfShards) {
  const Mesh mesh{.pipeline = 2, .replicate = 2, .shard = 3};
  std::set<int> seen;
  for (int rank = 6; rank < 12; ++rank) {
    EXPECT_EQ(mesh.batch_rank(rank) / mesh.replicate, mesh.data_rank(rank) % mesh.shard);
    seen.insert(mesh.batch_rank(rank));
  }
  EXPECT_EQ(seen, (std::set<int>{0, 1, 2, 3, 4, 5}));
}

TEST(Job, SlotNumbersAreDenseAndDistinct) {
  JobDescription description = describe("unet", 1);
  description.micro_batches = 3;
  const Job job(description);
  std::set<int> seen;
  for (int kind = 0; kind < kSlotKinds; ++kind) {
    for (int owner = -1; owner < 20; ++owner) {
      for (int index = 0; index < 3; ++index) {
        for (int mb = -1; mb < 4; ++mb) {
          const int id = job.slot_id({static_cast<SlotKind>(kind), owner, index, mb});
          if (id >= 0) {
            EXPECT_LT(id, job.slot_count());
            seen.insert(id);
          }
        }
      }
    }
  }
  EXPECT_EQ(static_cast<int>(seen.size()), job.slot_count());
}

// 6,400 elements in 36 bytes each 64: on two ranks 4,096 and the rest, both padded to 4,096.
TEST(Job, CodesTakeWholeBytesForEachBlockOfElements) {
  JobDescription description = describe("decoder", 1);
  description.mesh.shard = 2;
  description.placement.zero = 3;
  UnitCost& unit = description.model.units[1];
  unit = {.name = "codes", .elements = 6400, .parameter_bytes = 3600, .frozen = true};
  EXPECT_EQ(Job(description).size({.kind = SlotKind::kParamShard, .owner = 1}), 2304);
  EXPECT_EQ(Job(description).size({.kind = SlotKind::kParam, .owner = 1}), 4608);
  description.mesh.shard = 1;
  EXPECT_EQ(Job(description).size({.kind = SlotKind::kParam, .owner = 1}), 3600);
  unit.parameter_bytes = 3601;
  EXPECT_THROW(Job{description}, UserError);
}

TEST(Job, ContradictionsAreRefused) {
  const std::vector<std::pair<std::string, std::function<void(JobDescription&)>>> changes{
      {"nothing to shard", [](auto& d) { d.mesh.shard = 2; }},
      {"only as shards", [](auto& d) { d.placement.parameters = TierId::kHost; }},
      {"zero: 4", [](auto& d) { d.placement.zero = 4; }},
      {"at least 1", [](auto& d) { d.micro_batches = 0; }},
      {"do not cover", [](auto& d) { d.stages.back().end -= 1; }},
      {"follow each other", [](auto& d) { d.stages.front().begin = 1; }},
      {"do not cover", [](auto& d) { d.mesh.pipeline = 2; }},
      {"no earlier block",
       [](auto& d) {
         d.model.blocks[1].reads = {{1, 0}};
       }},
      {"repeated",
       [](auto& d) {
         d.model.blocks[1].units = {1, 1};
       }},
      {"does not read",
       [](auto& d) {
         d.model.blocks[1].saves = {{{kLoader, 0}}};
       }},
      {"does not exist", [](auto& d) { d.model.blocks[1].units = {99}; }},
      {"writes no values", [](auto& d) { d.model.blocks[1].value_bytes = {}; }},
      {"negative", [](auto& d) { d.model.blocks[1].full_bytes = -1; }},
      {"negative", [](auto& d) { d.model.units[1].state_bytes = -1; }},
      {"no multiple", [](auto& d) { d.model.units[1].elements = 5; }},
      {"out of order", [](auto& d) { std::swap(d.model.layers[0], d.model.layers[1]); }},
      {"no blocks", [](auto& d) { d.model.blocks.clear(); }},
  };
  for (const auto& [message, change] : changes) {
    JobDescription description = describe("decoder", 1);
    change(description);
    try {
      const Job job(description);
      ADD_FAILURE() << "accepted: " << message;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(message));
    }
  }
}

TEST(Job, ReproducibleRefusesATieAcrossStages) {
  JobDescription description = describe("tied", 2);
  description.mesh.pipeline = 2;
  description.reproducible = true;
  description.model.units[0].name = "embedding";
  EXPECT_THAT(
      [&] { Job{description}; },
      ::testing::ThrowsMessage<UserError>(
          ::testing::HasSubstr("embedding is tied across 2 pipeline ranks")));
  description.stages = even_stages(description.model, 1);
  description.mesh.pipeline = 1;
  EXPECT_NO_THROW(Job{description});
}

} // namespace
} // namespace palimpsest::testing
