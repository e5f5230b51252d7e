#include <palimpsest/parallel/sharding/sharded_param_store.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/allocator.h>

#include <ATen/ops/full.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kParameters = 1000;

/// A trained unit of kParameters and a frozen one of 10, for AdamW.
class Fixture {
 public:
  explicit Fixture(at::ScalarType dtype, int moments = 2, int zero = 0, bool reproducible = false) {
    install_cpu_allocator();
    here_.emplace(memory_);
    units_.push_back(std::make_unique<ParamUnit>(
        "w", std::vector<Parameter>{{.name = "w", .shape = {kParameters}}}, dtype, true));
    units_.push_back(std::make_unique<ParamUnit>(
        "frozen", std::vector<Parameter>{{.name = "f", .shape = {10}}}, dtype, false));
    store_.emplace(
        units_,
        ShardedParamStore::Settings{
            .placement = {.zero = zero}, .reproducible = reproducible, .moment_count = moments},
        std::vector<std::vector<GroupRange>>{
            {{.begin = 0, .end = kParameters, .weight_decay = 0.5}}, {}},
        MeshGroups{},
        memory_);
  }
  int64_t bytes(Category category) const {
    return memory_.usage(category).live;
  }

  MemoryContext memory_{"rank 0"};
  std::optional<ScopedContext> here_;
  std::vector<std::unique_ptr<ParamUnit>> units_;
  std::optional<ShardedParamStore> store_;
};

const Slot kGradient{SlotKind::kGradBuffer, 0};

// AdamW in fp32: 4 bytes of parameter and 8 of moments, 4 more of gradient while that lives. In
// bf16: 2 of parameter, 4 of master and 8 of moments, and the gradient is fp32 there too.
TEST(ShardedParamStore, BytesPerParameterAreThoseOfTheStates) {
  struct Case {
    at::ScalarType dtype;
    int moments;
    int64_t parameter;
    int64_t optimizer;
  };
  for (const Case& expected : std::vector<Case>{
           {at::kFloat, 2, 4, 8},
           {at::kFloat, 1, 4, 4},
           {at::kFloat, 0, 4, 0},
           {at::kBFloat16, 2, 2, 4 + 8},
           {at::kBFloat16, 0, 2, 4}}) {
    Fixture at(expected.dtype, expected.moments);
    const int64_t frozen = 10 * expected.parameter;
    const int64_t parameters = kParameters * expected.parameter + frozen;
    const int64_t optimizer = kParameters * expected.optimizer;
    EXPECT_EQ(at.bytes(Category::kParameters), parameters);
    EXPECT_EQ(at.bytes(Category::kOptimizer), optimizer);
    EXPECT_EQ(at.bytes(Category::kGradients), 0);
    at.store_->open(kGradient);
    EXPECT_EQ(at.bytes(Category::kGradients), 4 * kParameters);
    EXPECT_EQ(at.memory_.total().live, parameters + optimizer + 4 * kParameters);
    at.store_->close(kGradient);
    EXPECT_EQ(at.bytes(Category::kGradients), 0);
    at.store_.reset();
    EXPECT_EQ(at.memory_.total().live, 0);
    EXPECT_FALSE(at.units_[0]->data().defined());
  }
}

TEST(ShardedParamStore, StatesBeginAtZeroAndTheUnitSeesThem) {
  Fixture at(at::kFloat);
  ParamShard& shard = at.store_->shard(0);
  ASSERT_EQ(shard.moments.size(), 2U);
  for (const at::Tensor& moment : shard.moments) {
    EXPECT_EQ(moment.numel(), kParameters);
    EXPECT_EQ(moment.abs().max().item<float>(), 0);
  }
  EXPECT_EQ(shard.groups.front().weight_decay, 0.5);
  shard.parameters.fill_(3);
  EXPECT_EQ(at.units_[0]->view(0)[7].item<float>(), 3);
  for (int step = 0; step < 2; ++step) { // each window's gradient begins at zero
    at.store_->open(kGradient);
    EXPECT_EQ(at.store_->shard(0).gradient.abs().max().item<float>(), 0);
    at.units_[0]->grad_view(0).fill_(2);
    EXPECT_EQ(shard.gradient[9].item<float>(), 2);
    at.store_->close(kGradient);
    EXPECT_FALSE(shard.gradient.defined());
    EXPECT_FALSE(at.units_[0]->grad().defined());
  }
}

// 1 + 2^-9 needs nine bits behind the point, bf16 has seven: it rounds to 1, the master keeps it.
TEST(ShardedParamStore, RefreshRoundsTheMaster) {
  Fixture at(at::kBFloat16);
  const float value = 1.0F + 0x1p-9F;
  at.store_->shard(0).values().fill_(value);
  at.store_->refresh(0);
  EXPECT_EQ(at.store_->shard(0).master[3].item<float>(), value);
  EXPECT_EQ(at.units_[0]->view(0)[3].item<float>(), 1.0F);
  at.store_->shard(1).values().fill_(
      2); // a frozen unit has no master: its values are its parameters
  at.store_->refresh(1);
  EXPECT_EQ(at.units_[1]->view(0)[3].item<float>(), 2.0F);
}

TEST(ShardedParamStore, OptimizerStatesMayLeaveTheDevice) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Fixture at(dtype);
    const Slot states{SlotKind::kOptimizerState, 0};
    const std::vector<at::Tensor*> tensors = at.store_->tensors(states);
    EXPECT_EQ(tensors.size(), dtype == at::kFloat ? 2U : 3U);
    for (at::Tensor* tensor : tensors) {
      *tensor = at::Tensor();
    }
    EXPECT_EQ(at.bytes(Category::kOptimizer), 0);
    EXPECT_EQ(at.store_->tensors(states).size(), dtype == at::kFloat ? 2U : 3U);
  }
}

// A group of one shards too: states count twice where the table has a whole beside a shard.
TEST(ShardedParamStore, AGroupOfOneFollowsTheTable) {
  for (int zero = 1; zero <= 3; ++zero) {
    Fixture at(at::kBFloat16, 2, zero);
    ShardedParamStore& store = *at.store_;
    store.shard(0).values().fill_(2);
    store.refresh(0);
    EXPECT_EQ(store.range(0), (ElementRange{0, kParameters}));
    EXPECT_EQ(at.bytes(Category::kParameters), 2 * (kParameters + 10));
    if (zero == 3) {
      EXPECT_FALSE(at.units_[0]->data().defined());
      store.gather(0).wait();
      store.gather(1).wait(); // frozen parameters rest in shards as well
      EXPECT_EQ(at.bytes(Category::kParameters), 2 * 2 * (kParameters + 10));
      store.release(1);
    }
    EXPECT_EQ(at.units_[0]->view(0)[7].item<float>(), 2);
    store.open(kGradient);
    store.open({SlotKind::kGradShard, 0});
    at.units_[0]->grad_view(0).fill_(3);
    store.reduce(0, {0, 1}, ReduceAxis::kShard).wait();
    store.reduce(0, {1, 2}, ReduceAxis::kShard).wait();
    store.close(kGradient);
    EXPECT_EQ(store.shard(0).gradient[5].item<float>(), 6);
    EXPECT_EQ(at.bytes(Category::kGradients), 4 * kParameters);
    store.close({SlotKind::kGradShard, 0});
    EXPECT_FALSE(store.shard(0).gradient.defined());
    if (zero == 3) {
      store.release(0);
      EXPECT_EQ(at.bytes(Category::kParameters), 2 * (kParameters + 10));
    } else {
      store.publish(0).wait();
    }
  }
}

// What nobody wrote is zero, also where a buffer of old numbers is used again.
TEST(ShardedParamStore, AnUnusedUnitContributesZeros) {
  Fixture at(at::kFloat, 0, 2);
  for (int step = 0; step < 3; ++step) {
    at.store_->open(kGradient);
    at.store_->open({SlotKind::kGradShard, 0});
    if (step != 1) {
      at.units_[0]->grad_view(0).fill_(5);
    }
    at.store_->reduce(0, {0, 1}, ReduceAxis::kShard).wait();
    EXPECT_EQ(at.store_->shard(0).gradient.abs().max().item<float>(), step == 1 ? 0 : 5);
    at.store_->close(kGradient);
    at.store_->close({SlotKind::kGradShard, 0});
  }
}

TEST(ShardedParamStore, ShardsMayLeaveTheDevice) {
  Fixture at(at::kBFloat16, 2, 3);
  ShardedParamStore& store = *at.store_;
  store.open({SlotKind::kGradShard, 0});
  for (const auto& [kind, category] :
       {std::pair(SlotKind::kParamShard, Category::kParameters),
        std::pair(SlotKind::kGradShard, Category::kGradients)}) {
    const int64_t before = at.bytes(category);
    for (at::Tensor* tensor : store.tensors({kind, 0})) {
      *tensor = at::Tensor();
    }
    EXPECT_EQ(before - at.bytes(category), kParameters * (kind == SlotKind::kGradShard ? 4 : 2));
    EXPECT_EQ(store.tensors({kind, 0}).size(), 2U); // the same list fetches them
  }
}

TEST(ShardedParamStore, RefusesWhatTheTableDoesNotHave) {
  Fixture at(at::kFloat);
  ShardedParamStore& store = *at.store_;
  const auto refused = [](const auto& call, const std::string& part) {
    EXPECT_THAT(call, ThrowsMessage<InternalError>(HasSubstr(part)));
  };
  refused([&] { store.gather(0); }, "unit 0 is whole already");
  refused([&] { store.release(0); }, "unit 0 stays whole");
  refused([&] { store.reduce(0, {0, 1}, ReduceAxis::kReplicate); }, "no replicas");
  refused([&] { store.reduce(0, {0, 1}, ReduceAxis::kTie); }, "nobody to be summed with");
  refused([&] { store.publish(0); }, "unit 0 is updated as a whole");
  refused([&] { store.open({SlotKind::kGradShard, 0}); }, "grad_shard(0) is no gradient here");
  refused([&] { store.tensors({SlotKind::kParam, 0}); }, "param(0) stays on the device");
  refused([&] { store.shard(2); }, "no unit 2");
  refused([&] { store.shard(-1); }, "no unit -1");
  store.open(kGradient);
  refused([&] { store.open(kGradient); }, "grad_buffer(0) begins twice");
  refused([&] { ShardedParamStore(at.units_, {}, {}, {}, at.memory_); }, "0 groups for 2 units");
  refused(
      [&] {
        ShardedParamStore(at.units_, {}, {{}, {}}, {.mesh = {.shard = 2}}, at.memory_);
      },
      "nothing to shard over 2 ranks");

  Fixture sharded(at::kFloat, 0, 3);
  sharded.store_->gather(0).wait();
  refused([&] { sharded.store_->gather(0); }, "unit 0 is gathered twice");
  refused([&] { sharded.store_->reduce(0, {0, 1}, ReduceAxis::kShard); }, "no gradient to sum");
  refused([&] { sharded.store_->publish(0); }, "stays in shards");
}

} // namespace
} // namespace palimpsest
