// Bytes of blocks that can be counted by hand.

#include <palimpsest/memory/profile/profile.h>

#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/models/mlp_chain.h>
#include <palimpsest/tests/core/engine/scalar_chain.h>

#include <ATen/ops/full.h>

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

using testing::Counts;
using testing::scalar_chain;
using testing::token_losses;

/// y = x + x; its tape lists its input, and one tensor of its own twice.
class DoubleBlock final : public Block {
 public:
  class DoubleTape final : public Tape {
   public:
    explicit DoubleTape(const at::Tensor& x)
        : input_(x), own_(x.clone()), view_(own_.narrow(1, 0, 1)) {}
    Tensors backward(TensorSpan, TensorSpan grads, BackwardPart part, const BlockContext&)
        override {
      return part == BackwardPart::kWeight ? Tensors{} : Tensors{grads[0] + grads[0]};
    }
    std::vector<at::Tensor*> tensors() override {
      return {&input_, &own_, &view_};
    }

   private:
    at::Tensor input_;
    at::Tensor own_;
    at::Tensor view_;
  };
  ForwardResult forward(TensorSpan inputs, const ForwardRequest& request, const BlockContext&)
      override {
    ForwardResult result;
    if (!request.yields.empty()) {
      result.values = {inputs[0] + inputs[0]};
    }
    if (request.tape != TapeMode::kNone) {
      result.tape = std::make_unique<DoubleTape>(inputs[0]);
    }
    return result;
  }
  double forward_flops(TensorSpan inputs) const override {
    return static_cast<double>(inputs[0].numel());
  }
  std::string kind() const override {
    return "double";
  }
};

class ProfileTest : public ::testing::Test {
 protected:
  ProfileTest() {
    install_cpu_allocator();
    here_.emplace(memory_);
  }
  MemoryContext memory_{"rank 0"};
  std::optional<ScopedContext> here_;
};

TEST_F(ProfileTest, AChainOfScalarsIsExact) {
  Counts counts;
  Chain chain = scalar_chain(2, {0, 1, 0}, counts);
  const ModelCost cost = profile(chain, token_losses({1, 2, 3, 4, 5, 6}), memory_, {});
  EXPECT_EQ(cost.batch_bytes, 6 * 4 + 6 * 8); // floats and labels
  ASSERT_EQ(cost.units.size(), 2U);
  for (const UnitCost& unit : cost.units) {
    EXPECT_EQ(unit.parameter_bytes, 4);
    EXPECT_EQ(unit.gradient_bytes, 4);
    EXPECT_EQ(unit.state_bytes, 0);
  }
  ASSERT_EQ(cost.blocks.size(), 4U);
  for (int block = 0; block < 3; ++block) {
    const BlockCost& entry = cost.blocks[static_cast<size_t>(block)];
    EXPECT_EQ(entry.name, "layers." + std::to_string(block));
    EXPECT_EQ(entry.reads, (std::vector<ValueRef>{{block - 1, 0}}));
    EXPECT_EQ(entry.saves, entry.reads);
    EXPECT_EQ(entry.value_bytes, (std::vector<int64_t>{24}));
    EXPECT_EQ(entry.full_bytes, 0); // the input is a value of its own
    EXPECT_EQ(entry.lean_bytes, 0);
    EXPECT_EQ(entry.weight_jobs_bytes, 4); // one scalar
    EXPECT_EQ(entry.forward_workspace.none, 0);
    EXPECT_EQ(entry.forward_workspace.full, 0);
    // dy x and its sum live together, then the sum beside dy w, which is kept.
    EXPECT_EQ(entry.backward_workspace.full, 4);
    EXPECT_EQ(entry.forward_flops, 6);
    EXPECT_EQ(entry.backward_flops, 12);
    EXPECT_GT(entry.forward_seconds, 0);
    EXPECT_GT(entry.input_seconds, 0);
  }
  EXPECT_EQ(cost.blocks[1].units, std::vector<int>{1});
  EXPECT_TRUE(cost.blocks[3].value_bytes.empty());
  EXPECT_EQ(cost.layers.size(), 3U);
  EXPECT_EQ(cost.layers[2].blocks, (BlockRange{2, 3}));
}

// [4, 3] -> 5, activated -> 2. A full tape owns what was activated; waiting weight jobs own dy and
// what the weight was multiplied with.
TEST_F(ProfileTest, AnMlpChainIsExactInBothPrecisions) {
  for (const int64_t size : {4, 2}) {
    Chain chain =
        build_mlp_chain({.widths = {3, 5, 2}, .compute = size == 4 ? at::kFloat : at::kBFloat16});
    const MicroBatch batch{
        .inputs = at::full({4, 3}, 1.0F),
        .labels = at::full({4, 2}, 1.0F),
        .target_count = 8,
        .token_count = 4};
    const ModelCost cost = profile(chain, batch, memory_, {.moment_count = 2});
    const int64_t masters = size == 4 ? 0 : 1;
    const std::vector<int64_t> parameters = {3 * 5 + 5, 5 * 2 + 2};
    for (size_t unit = 0; unit < 2; ++unit) {
      EXPECT_EQ(cost.units[unit].parameter_bytes, size * parameters[unit]);
      EXPECT_EQ(cost.units[unit].gradient_bytes, 4 * parameters[unit]);
      EXPECT_EQ(cost.units[unit].state_bytes, 4 * parameters[unit] * (masters + 2));
    }
    EXPECT_EQ(cost.blocks[0].value_bytes, (std::vector<int64_t>{4 * 5 * size}));
    EXPECT_EQ(cost.blocks[0].full_bytes, 0);
    EXPECT_EQ(cost.blocks[0].weight_jobs_bytes, 4 * 5 * size + 4 * 3 * size);
    EXPECT_EQ(cost.blocks[0].forward_flops, 2 * 4 * 3 * 5);
    EXPECT_EQ(cost.blocks[1].value_bytes, (std::vector<int64_t>{4 * 2 * size}));
    EXPECT_EQ(cost.blocks[1].full_bytes, 4 * 5 * size);
    EXPECT_EQ(cost.blocks[1].lean_bytes, 0);
    EXPECT_EQ(cost.blocks[1].weight_jobs_bytes, 4 * 2 * size + 4 * 5 * size);
  }
}

TEST_F(ProfileTest, FrozenUnitsHaveNoGradientAndNoState) {
  Chain chain = build_mlp_chain(
      {.widths = {3, 3, 3}, .compute = at::kBFloat16, .trainable = [](const std::string& name) {
         return name.starts_with("layers.1");
       }});
  const MicroBatch batch{
      .inputs = at::full({4, 3}, 1.0F),
      .labels = at::full({4, 3}, 1.0F),
      .target_count = 12,
      .token_count = 4};
  const ModelCost cost = profile(chain, batch, memory_, {.moment_count = 1});
  EXPECT_TRUE(cost.units[0].frozen);
  EXPECT_EQ(cost.units[0].parameter_bytes, 2 * 12);
  EXPECT_EQ(cost.units[0].gradient_bytes, 0);
  EXPECT_EQ(cost.units[0].state_bytes, 0);
  EXPECT_FALSE(cost.units[1].frozen);
  EXPECT_EQ(cost.units[1].state_bytes, 12 * (4 + 4));
}

TEST_F(ProfileTest, ATapesBytesAreItsOwnStoragesOnce) {
  Counts counts;
  Chain chain = scalar_chain(1, {0}, counts);
  chain.blocks.front().block = std::make_unique<DoubleBlock>();
  const ModelCost cost = profile(chain, token_losses({1, 2, 3}), memory_, {});
  EXPECT_EQ(cost.blocks[0].full_bytes, 12);
  EXPECT_EQ(cost.blocks[0].lean_bytes, 12);
}

TEST_F(ProfileTest, RunsEachDistinctBlockOnceHoweverMany) {
  Counts one;
  Counts many;
  Chain single = scalar_chain(1, {0}, one);
  Chain chain = scalar_chain(12, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, many);
  profile(single, token_losses({1, 2}), memory_, {});
  profile(chain, token_losses({1, 2}), memory_, {});
  EXPECT_GT(one.forwards, 0);
  EXPECT_EQ(one.forwards, many.forwards);
  EXPECT_EQ(one.backwards, many.backwards);
  EXPECT_EQ(many.commits, 0); // nothing it ran counts
  EXPECT_EQ(many.live_tapes, 0);
}

// Once for each of its ways, and the bytes are those of as many repeats as one likes.
TEST_F(ProfileTest, ABlockThatTakesLongerThanItMayIsMeasuredOnce) {
  Counts counts;
  Chain chain = scalar_chain(1, {0}, counts);
  const MicroBatch batch = token_losses({1, 2, 3, 4, 5, 6});
  const ModelCost once = profile(chain, batch, memory_, {.seconds_per_block = 0});
  EXPECT_EQ(counts.forwards, 4); // without a tape, with either, and for the halves of a backward
  EXPECT_EQ(counts.backwards, 3); // of either tape, and a half: the other one is not counted
  EXPECT_EQ(counts.live_tapes, 0);
  const ModelCost often = profile(chain, batch, memory_, {});
  EXPECT_GT(counts.forwards, 5 * 4);
  for (size_t block = 0; block < 2; ++block) {
    EXPECT_GT(once.blocks[block].forward_seconds, 0);
    EXPECT_EQ(once.blocks[block].value_bytes, often.blocks[block].value_bytes);
    EXPECT_EQ(once.blocks[block].weight_jobs_bytes, often.blocks[block].weight_jobs_bytes);
    EXPECT_EQ(
        once.blocks[block].backward_workspace.full, often.blocks[block].backward_workspace.full);
  }
  EXPECT_GT(once.blocks[0].input_seconds, 0);
  EXPECT_GT(once.blocks[0].weight_seconds, 0);
}

TEST_F(ProfileTest, EndsWhereItsCallerThrows) {
  Counts counts;
  Chain chain = scalar_chain(2, {0, 1, 0}, counts);
  std::vector<int> forwards; // at the begin of each block
  ProfileOptions options;
  options.before_block = [&] { forwards.push_back(counts.forwards); };
  profile(chain, token_losses({1, 2}), memory_, options);
  ASSERT_EQ(forwards.size(), 4U); // known ones and the loss too
  EXPECT_EQ(forwards.front(), 0);
  EXPECT_EQ(forwards[1], forwards.back()); // all three are one block
  int calls = 0;
  options.before_call = [&] {
    if (++calls == 3) {
      throw std::runtime_error("asked to stop");
    }
  };
  const int before = counts.forwards + counts.backwards;
  EXPECT_THROW(profile(chain, token_losses({1, 2}), memory_, options), std::runtime_error);
  EXPECT_EQ(counts.forwards + counts.backwards, before + 2);
  EXPECT_FALSE(chain.units[0]->data().defined());
  EXPECT_EQ(counts.live_tapes, 0);
}

TEST_F(ProfileTest, UnitsEndAsTheyWere) {
  Counts counts;
  Chain chain = scalar_chain(2, {0, 1}, counts);
  const at::Tensor bound = at::full({1}, 3.0F);
  chain.units[1]->bind_data(bound);
  const int64_t before = memory_.total().live;
  profile(chain, token_losses({1}), memory_, {});
  EXPECT_FALSE(chain.units[0]->data().defined());
  EXPECT_FALSE(chain.units[0]->grad().defined());
  EXPECT_TRUE(chain.units[1]->data().is_same(bound));
  EXPECT_EQ(bound.item<float>(), 3);
  EXPECT_EQ(memory_.total().live, before);
}

// Two layers of one kind and size, of which one is frozen: it queues no gradients, nor has any.
TEST_F(ProfileTest, FrozenBlocksAreMeasuredApart) {
  Chain chain = build_mlp_chain({.widths = {8, 8, 8, 8}, .trainable = [](const std::string& name) {
                                   return !name.starts_with("layers.1");
                                 }});
  ASSERT_EQ(chain.blocks[1].block->kind(), chain.blocks[2].block->kind());
  const MicroBatch batch{
      .inputs = at::full({4, 8}, 1.0F), .labels = at::full({4, 8}, 1.0F), .target_count = 32};
  const ModelCost cost = profile(chain, batch, memory_, {.moment_count = 2});
  EXPECT_EQ(cost.blocks[1].weight_jobs_bytes, 0);
  EXPECT_EQ(cost.blocks[2].weight_jobs_bytes, 2 * 4 * 8 * 4); // the operand and its gradient
  EXPECT_TRUE(cost.units[1].frozen);
  EXPECT_EQ(cost.units[1].parameter_bytes, (8 * 8 + 8) * 4);
  EXPECT_EQ(cost.units[1].gradient_bytes + cost.units[1].state_bytes, 0);
  EXPECT_EQ(cost.units[2].gradient_bytes + cost.units[2].state_bytes, 3 * (8 * 8 + 8) * 4);
}

} // namespace
} // namespace palimpsest
