#include <palimpsest/core/plan/cost_chain.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace palimpsest::testing {
namespace {

using ::testing::HasSubstr;

TEST(CostChain, HasAStageForEachBlockBetweenTheFirstTrainableOneAndTheHead) {
  const ModelCost model = named_model("decoder"); // embedding, 4 layers of 2 blocks, head
  const CostChain chain = chain_of(model);
  chain.validate();
  EXPECT_EQ(chain.size(), model.terminal());
  EXPECT_EQ(chain.input_bytes, model.batch_bytes);
  EXPECT_EQ(chain.loss_seconds, 1);
  EXPECT_EQ(chain.loss_workspace, 1);
  const ChainStage& stage = chain.stages[3];
  EXPECT_EQ(stage.blocks, (BlockRange{3, 4}));
  EXPECT_EQ(stage.output_bytes, 1);
  EXPECT_EQ(stage.forward_seconds, 1);
  EXPECT_EQ(stage.forward_workspace, 1);
  // a tape and the output; a BACKWARD for which the output is gone already
  const std::vector<TapeOption> tapes{
      {TapeMode::kFull, 8 + 1, 1, 2 - 1, 1 + 1}, {TapeMode::kLean, 4 + 1, 1, 2 - 1, 1 + 1 + 0.5}};
  EXPECT_EQ(stage.tapes, tapes);
  EXPECT_EQ(chain.stages[0].tapes.size(), 1); // its lean tape is no smaller
}

TEST(CostChain, LeavesOutBlocksThatNeedNoBackward) {
  const ModelCost model = named_model("frozen_prefix"); // the embedding and 2 layers of 2 blocks
  const CostChain chain = chain_of(model);
  EXPECT_EQ(chain.size(), model.terminal() - 5);
  EXPECT_EQ(chain.stages.front().blocks, (BlockRange{5, 6}));
  EXPECT_EQ(chain.input_bytes, model.batch_bytes + 1);
  ModelCost frozen = model;
  for (size_t unit = 0; unit + 1 < frozen.units.size(); ++unit) {
    frozen.units[unit].frozen = true;
  }
  EXPECT_EQ(chain_of(frozen).size(), 0); // only the head learns
}

TEST(CostChain, CountsASkipWhereverItMayLive) {
  // Four layers of one block; the last reads what the first wrote beside its output: 2 bytes.
  const ModelCost model = chain({.layers = 4, .per_layer = 1, .skips = true});
  const CostChain with = chain_of(model);
  ModelCost plain = model;
  plain.blocks[1].value_bytes = {1, 0};
  plain.blocks[2].value_bytes = {1, 0};
  const CostChain without = chain_of(plain);
  // block 1 writes one for block 4; block 2 writes one for block 3, which is next
  const auto more = [&](size_t stage) {
    return with.stages[stage].forward_workspace - without.stages[stage].forward_workspace;
  };
  EXPECT_EQ(more(0), 0);
  for (const size_t stage : {1, 2, 3, 4}) {
    EXPECT_EQ(more(stage), 2) << stage;
  }
  EXPECT_EQ(with.stages[1].output_bytes, 1);
  EXPECT_EQ(with.stages[2].output_bytes, 1 + 2);
  EXPECT_EQ(with.loss_workspace - without.loss_workspace, 2);
}

CostChain small_chain() {
  const ChainStage stage{
      .name = "mlp",
      .output_bytes = 2,
      .forward_seconds = 1,
      .tapes = {{.bytes = 5, .backward_seconds = 2}}};
  return {.input_bytes = 1, .stages = {stage, stage}};
}

TEST(CostChain, SaysWhichStageIsWrong) {
  small_chain().validate();
  struct Wrong {
    std::function<void(CostChain&)> make;
    std::string says;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Wrong> wrongs = {
      {[](CostChain& chain) { chain.input_bytes = -1; }, "the chain: its input of -1 bytes"},
      {[](CostChain& chain) { chain.loss_workspace = -2; }, "the loss: its workspace of -2 bytes"},
      {[&](CostChain& chain) { chain.loss_seconds = nan; }, "the loss: its time of nan seconds"},
      {[](CostChain& chain) { chain.stages[1].tapes.clear(); }, "stage 2 (mlp): no tape is given"},
      {[](CostChain& chain) { chain.stages[1].output_bytes = kLargestBytes + 1; },
       "stage 2 (mlp): its output of 1125899906842625 bytes is not allowed; give 0 to "
       "1125899906842624"},
      {[](CostChain& chain) { chain.stages[0].tapes[0].bytes = 1; },
       "its tape of 1 bytes is smaller than its output of 2"},
      {[](CostChain& chain) { chain.stages[0].tapes[0].tape = TapeMode::kNone; },
       "must be one full, one lean, or both"},
      {[](CostChain& chain) { chain.stages[0].tapes.push_back(chain.stages[0].tapes[0]); },
       "must be one full, one lean, or both"},
      {[](CostChain& chain) {
         chain.stages[0].tapes.push_back({TapeMode::kLean, 3, 0, 0, 1.5});
       },
       "faster from the lean tape (1.5 s) than from the full one (2 s)"},
  };
  for (const Wrong& wrong : wrongs) {
    CostChain chain = small_chain();
    wrong.make(chain);
    try {
      chain.validate();
      ADD_FAILURE() << wrong.says;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(wrong.says));
    }
  }
}

TEST(CostChain, TurnsStagesIntoBlocks) {
  const CostChain made = chain_of(named_model("frozen_prefix")); // stage 0 is block 5
  const Segments nested{
      {{0, 3}, TapeMode::kNone, {recomputed({0, 2}), {{2, 3}, TapeMode::kLean, {}}}}};
  const Segments expected{
      {{5, 8}, TapeMode::kNone, {recomputed({5, 7}), {{7, 8}, TapeMode::kLean, {}}}}};
  EXPECT_EQ(block_segments(nested, made), expected);
  EXPECT_EQ(stage_segments(expected, made), nested);

  const CostChain decoder = chain_of(named_model("decoder")); // stage 0 has no lean tape
  const Segments lean{{{0, 3}, TapeMode::kLean, {}}};
  const Segments left{{{0, 1}, TapeMode::kFull, {}}, {{1, 3}, TapeMode::kLean, {}}};
  EXPECT_EQ(block_segments(lean, decoder), left);
}

TEST(CostChain, TurnsBlocksIntoStagesWithoutThoseBeforeTheFirst) {
  const CostChain made = chain_of(named_model("frozen_prefix"));
  const Segments across{recomputed({3, 7}), {{7, 8}, TapeMode::kLean, {}}};
  const Segments stages{recomputed({0, 2}), {{2, 3}, TapeMode::kLean, {}}};
  EXPECT_EQ(stage_segments(across, made), stages);
  EXPECT_EQ(stage_segments({recomputed({0, 5})}, made), Segments{});
}

} // namespace
} // namespace palimpsest::testing
