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
  for_each_group(shard, 2, 42, [&](const GroupRange&, const UpdateBuffers&) { ++groups; });
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

TEST(ForEachGroup, SaysWhatIsRounded) {
  ParamShard shard = valid_shard();
  shard.unit = 5;
  shard.begin = 4096;
  shard.groups = {{0, 3}, {3, 4}};
  std::vector<int64_t> first;
  for_each_group(shard, 2, 42, [&](const GroupRange&, const UpdateBuffers& buffers) {
    EXPECT_EQ(buffers.rounding.seed, 42U);
    EXPECT_EQ(buffers.rounding.unit, 5U);
    first.push_back(buffers.rounding.first);
  });
  EXPECT_EQ(first, (std::vector<int64_t>{4096, 4099}));
}

TEST(ForEachGroup, TakesEveryPrecisionOfStates) {
  for (const at::ScalarType narrow : {at::kFloat, at::kBFloat16}) {
    ParamShard shard = valid_shard();
    shard.parameters = at::zeros({4}, narrow);
    shard.master = at::Tensor();
    shard.gradient = at::zeros({4}, narrow);
    shard.moments = {at::zeros({4}, narrow), at::zeros({4}, narrow)};
    EXPECT_EQ(groups_visited(shard), 1);
  }
  ParamShard half = valid_shard();
  half.parameters = at::zeros({4}, at::kHalf);
  EXPECT_EQ(groups_visited(half), 1);
}

TEST(ForEachGroup, NamesABrokenShard) {
  const auto breaks = [](const auto& damage) {
    ParamShard shard = valid_shard();
    damage(shard);
    EXPECT_THROW(groups_visited(shard), InternalError);
  };
  breaks([](ParamShard& s) { s.gradient = at::Tensor(); });
  breaks([](ParamShard& s) { s.gradient = at::zeros({3}, at::kFloat); });
  breaks([](ParamShard& s) { s.parameters = at::zeros({4}, at::kDouble); });
  breaks([](ParamShard& s) { // fp16 ones need a master
    s.parameters = at::zeros({4}, at::kHalf);
    s.master = at::Tensor();
  });
  breaks([](ParamShard& s) { s.master = at::zeros({4}, at::kDouble); });
  breaks([](ParamShard& s) { s.moments.pop_back(); });
  breaks([](ParamShard& s) { s.moments[1] = at::zeros({5}, at::kFloat); });
  breaks([](ParamShard& s) { s.groups = {{0, 3}}; });
  breaks([](ParamShard& s) { s.groups = {{0, 1}, {2, 4}}; });
  breaks([](ParamShard& s) { s.groups = {{0, 5}}; });
}

} // namespace
} // namespace palimpsest
