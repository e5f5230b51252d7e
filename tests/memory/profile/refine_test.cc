#include <palimpsest/memory/profile/refine.h>

#include <gtest/gtest.h>

#include <utility>

namespace palimpsest {
namespace {

/// Two equal blocks, another, and the terminal one; one unit.
ModelCost model() {
  ModelCost cost;
  cost.units.push_back({.name = "unit", .parameter_bytes = 4, .update_seconds = 8});
  const auto block = [&](const char* name, int number, double scale) {
    BlockCost entry{.name = name, .reads = {{number - 1, 0}}, .value_bytes = {16}};
    entry.forward_seconds = 2 * scale;
    entry.value_seconds = {.lean = 1 * scale, .full = 1.5 * scale};
    entry.input_seconds = 3 * scale;
    entry.weight_seconds = 1 * scale;
    entry.lean_seconds = 4 * scale;
    cost.blocks.push_back(std::move(entry));
  };
  block("one", 0, 1);
  block("two", 1, 1);
  block("three", 2, 10);
  BlockCost head{.name = "head", .reads = {{2, 0}}};
  head.forward_seconds = 5;
  cost.blocks.push_back(std::move(head));
  return cost;
}

// One: forward 2 as predicted, a rerun that nobody reads 1 and took 3. Two, its equal: forward took 6.
// Together 11 of 5 predicted. Backward from a lean tape 8, from a full one 4: took 24 of 12.
TEST(Refine, EqualBlocksMoveTogetherHalfOfTheWay) {
  const StepPlan plan = {
      Op::forward(0, 0, TapeMode::kNone, {0}),
      Op::forward(1, 0, TapeMode::kFull, {0}),
      Op::forward(2, 0, TapeMode::kFull, {0}),
      Op::forward(3, 0, TapeMode::kFull, {}),
      Op::backward(2, 0, BackwardPart::kBoth),
      Op::backward(1, 0, BackwardPart::kBoth),
      Op::forward(0, 0, TapeMode::kLean, {}),
      Op::backward(0, 0, BackwardPart::kBoth),
      Op::update(0)};
  const ModelCost cost = refined(model(), plan, {2, 6, 20, 5, 40, 4, 3, 20, 4});
  for (const int equal : {0, 1}) {
    const BlockCost& block = cost.blocks[static_cast<size_t>(equal)];
    EXPECT_DOUBLE_EQ(block.forward_seconds, 2 * (1 + 11.0 / 5) / 2);
    EXPECT_DOUBLE_EQ(block.value_seconds.lean, (1 + 11.0 / 5) / 2);
    EXPECT_DOUBLE_EQ(block.value_seconds.full, 1.5 * (1 + 11.0 / 5) / 2);
    EXPECT_DOUBLE_EQ(block.input_seconds, 3 * 1.5);
    EXPECT_DOUBLE_EQ(block.weight_seconds, 1.5);
    EXPECT_DOUBLE_EQ(block.lean_seconds, 4 * 1.5);
  }
  EXPECT_EQ(cost.blocks[2].forward_seconds, 20); // as predicted
  EXPECT_EQ(cost.blocks[2].input_seconds, 30);
  EXPECT_EQ(cost.blocks[3].forward_seconds, 5);
  EXPECT_EQ(cost.units[0].update_seconds, 6);
}

TEST(Refine, ComesToWhatAStepTakes) {
  ModelCost cost = model();
  const StepPlan plan = {
      Op::forward(0, 0, TapeMode::kFull, {0}), Op::backward(0, 0, BackwardPart::kBoth)};
  for (int step = 0; step < 40; ++step) {
    cost = refined(std::move(cost), plan, {3, 1});
  }
  EXPECT_NEAR(cost.blocks[0].forward_seconds, 3, 1e-9);
  EXPECT_NEAR(cost.blocks[0].input_seconds + cost.blocks[0].weight_seconds, 1, 1e-9);
}

} // namespace
} // namespace palimpsest
