#include <palimpsest/parallel/mesh/mesh_groups.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/support/ranks/ranks.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<int> sizes(const Mesh& mesh) {
  return {mesh.pipeline, mesh.replicate, mesh.shard};
}

TEST(Mesh, WhatIsLeftOpenFollowsFromTheRanks) {
  EXPECT_THAT(sizes(resolve_mesh(1, {})), ElementsAre(1, 1, 1));
  EXPECT_THAT(sizes(resolve_mesh(4, {})), ElementsAre(1, 4, 1));
  EXPECT_THAT(sizes(resolve_mesh(4, {.zero = 1})), ElementsAre(1, 1, 4));
  EXPECT_THAT(sizes(resolve_mesh(8, {.zero = 3, .replicate = 2})), ElementsAre(1, 2, 4));
  EXPECT_THAT(sizes(resolve_mesh(8, {.zero = 3, .shard = 2})), ElementsAre(1, 4, 2));
  EXPECT_THAT(sizes(resolve_mesh(12, {.zero = 2, .stages = 3})), ElementsAre(3, 1, 4));
  EXPECT_THAT(sizes(resolve_mesh(12, {.stages = 2})), ElementsAre(2, 6, 1));
  EXPECT_THAT(sizes(resolve_mesh(4, {.replicate = 4, .shard = 1})), ElementsAre(1, 4, 1));
}

TEST(Mesh, AProductThatIsNotTheWorldIsRefusedWithItsNumbers) {
  const auto refused = [](int world, const MeshRequest& request, const char* product) {
    EXPECT_THAT(
        [&] { resolve_mesh(world, request); },
        ThrowsMessage<UserError>(AllOf(HasSubstr(product), HasSubstr("parallel.replicate"))));
  };
  refused(
      6,
      {.zero = 3, .shard = 4},
      "1 pipeline stages x 1 replicas x 4 shards make 4 ranks, but there are 6");
  refused(4, {.zero = 2, .replicate = 3}, "x 3 replicas x 1 shards make 3 ranks, but there are 4");
  refused(4, {.stages = 3}, "3 pipeline stages x 1 replicas x 1 shards make 3 ranks");
  refused(2, {.zero = 3, .shard = 8}, "make 8 ranks, but there are 2");
  refused(4, {.zero = 1, .replicate = 2, .shard = 4}, "make 8 ranks, but there are 4");
  refused(4, {.replicate = 2}, "make 2 ranks, but there are 4");
  refused(2, {.zero = 3, .replicate = -1, .shard = -2}, "-1 replicas x -2 shards");
  refused(2, {.stages = 0}, "0 pipeline stages");
  // Products beyond 32 bits: 2^40 and 2^60 would be 0 there.
  constexpr int kMany = 1 << 20;
  refused(2, {.zero = 3, .stages = kMany, .shard = kMany}, "make 1099511627776 ranks");
  refused(
      2,
      {.zero = 3, .stages = kMany, .replicate = kMany, .shard = kMany},
      "make 1152921504606846976 ranks, but there are 2");
  // 641 * 6700417 = 2^32 + 1: one rank, to 32 bits.
  refused(1, {.replicate = 641, .shard = 6700417}, "make 4294967297 ranks, but there are 1");
}

TEST(Mesh, EachRankSeesItsGroups) {
  const Mesh mesh{.pipeline = 2, .replicate = 2, .shard = 2};
  on_ranks(8, [&](Communicator& world, MemoryContext&) {
    const MeshGroups groups = split_world(world, mesh);
    const int rank = world.rank();
    const auto members = [&](Communicator& group) {
      at::Tensor all = at::zeros({group.size()}, at::kLong);
      group.all_gather(at::full({1}, rank, at::kLong), all).wait();
      const auto* first = all.const_data_ptr<int64_t>();
      return std::vector<int64_t>(first, first + all.numel());
    };
    const int stage = rank / 4 * 4;
    const int shard = rank % 2;
    const int replica = rank / 2 * 2;
    EXPECT_THAT(members(*groups.shard), ElementsAre(replica, replica + 1));
    EXPECT_THAT(members(*groups.replicate), ElementsAre(stage + shard, stage + shard + 2));
    // replicas of one shard stand next to each other
    EXPECT_THAT(members(*groups.data), ElementsAre(stage, stage + 2, stage + 1, stage + 3));
    EXPECT_EQ(groups.data_rank(), mesh.batch_rank(rank));
    EXPECT_EQ(groups.shard_rank(), shard);
    EXPECT_EQ(groups.replicate_rank(), rank / 2 % 2);
  });
}

TEST(Mesh, AGroupOfOneIsNone) {
  const MeshGroups single;
  EXPECT_EQ(single.data, nullptr);
  EXPECT_EQ(single.data_rank(), 0);
  on_ranks(3, [&](Communicator& world, MemoryContext&) {
    const MeshGroups replicas = split_world(world, {.replicate = 3});
    EXPECT_EQ(replicas.shard, nullptr);
    EXPECT_EQ(replicas.data, replicas.replicate);
    const MeshGroups shards = split_world(world, {.shard = 3});
    EXPECT_EQ(shards.replicate, nullptr);
    EXPECT_EQ(shards.data, shards.shard);
    EXPECT_EQ(shards.data_rank(), world.rank());
    EXPECT_THROW(split_world(world, {.shard = 2}), InternalError);
  });
}

} // namespace
} // namespace palimpsest::testing
