#include <palimpsest/core/optim/shard_update.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/optim/adamw.h>
#include <palimpsest/tests/core/optim/shards.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

ParamShard valid_shard() {
  ParamShard shard = make_shard(at::zeros({4}, at::kFloat), AdamW(0.9, 0.999, 1e-8), 0, true);
  shard.gradient = at::zeros({4}, at::kFloat);
  return shard;
}

int groups_visited(const ParamShard& shard) {
  int groups = 0;
  for_each_group(shard, 2, [&](const GroupRange&, const UpdateBuffers&) { ++groups; });
  return groups;
}

TEST(ForEachGroup, VisitsEachGroupAndNoneOfAnEmptyShard) {
  ParamShard shard = valid_shard();
  EXPECT_EQ(groups_visited(shard), 1);
  shard.groups = {{0, 1}, {1, 4}};
  EXPECT_EQ(groups_visited(shard), 2);
  ParamShard empty = make_shard(at::zeros({0}, at::kFloat), AdamW(0.9, 0.999, 1e-8), 0, true);
  empty.gradient = at::zeros({0}, at::kFloat);
  empty.groups.clear();
  EXPECT_EQ(groups_visited(empty), 0);
}

TEST(ForEachGroup, NamesABrokenShard) {
  const auto breaks = [](const auto& damage) {
    ParamShard shard = valid_shard();
    damage(shard);
    EXPECT_THROW(groups_visited(shard), InternalError);
  };
  breaks([](ParamShard& s) { s.gradient = at::Tensor(); });
  breaks([](ParamShard& s) { s.gradient = at::zeros({3}, at::kFloat); });
  breaks([](ParamShard& s) { s.master = at::Tensor(); }); // bf16 parameters without a master
  breaks([](ParamShard& s) { s.master = at::zeros({4}, at::kDouble); });
  breaks([](ParamShard& s) { s.moments.pop_back(); });
  breaks([](ParamShard& s) { s.moments[1] = at::zeros({5}, at::kFloat); });
  breaks([](ParamShard& s) { s.groups = {{0, 3}}; });
  breaks([](ParamShard& s) { s.groups = {{0, 1}, {2, 4}}; });
  breaks([](ParamShard& s) { s.groups = {{0, 5}}; });
}

} // namespace
} // namespace palimpsest
