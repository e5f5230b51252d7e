// What is held between forward and backward, and that nothing is left behind.

#include <palimpsest/core/device/rss.h>
#include <palimpsest/launcher/cli/progress.h>
#include <palimpsest/tests/core/data/tensors.h>
#include <palimpsest/tests/launcher/run/run_testing.h>

#include <fmt/format.h>

#include <cstdlib>

#include <sstream>

namespace palimpsest {
namespace {

using testing::TestFolder;

constexpr int64_t kBatch = 4;
constexpr int64_t kTokens = 16;
constexpr int64_t kHidden = 24;
constexpr int64_t kLayers = 4;
constexpr int64_t kValue = kBatch * kTokens * kHidden * 4; // one [B, T, H] in fp32: 6,144 bytes

std::string yaml(const TestFolder& folder) {
  constexpr int64_t kSamples = 4 * kBatch;
  std::vector<int32_t> ids;
  for (int index = 0; index < kSamples * kTokens; ++index) {
    ids.push_back((index * index + 3 * index) % 67);
  }
  std::ofstream(folder / "ids.safetensors", std::ios::binary) << safetensors_text(
      {test_tensor("input_ids", "I32", {kSamples, kTokens}, ids),
       test_tensor("labels", "I32", {kSamples, kTokens}, ids)});
  return fmt::format(
      "model: {{family: llama, vocab_size: 67, hidden_size: {}, num_hidden_layers: {}, "
      "num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 56}}\n"
      "data: {{files: [{}], shuffle: false}}\n"
      "training: {{steps: 2, global_batch_size: {}, threads: 1}}\n"
      "optimizer: {{learning_rate: 1e-3}}\n",
      kHidden,
      kLayers,
      folder / "ids.safetensors",
      kBatch);
}

/// The activations that are live when all forwards are done and no backward or rerun has begun.
class BetweenForwardAndBackward final : public Observer {
 public:
  BetweenForwardAndBackward(const MemoryContext& memory, int terminal)
      : memory_(memory), terminal_(terminal) {}
  void op_begin(size_t /*index*/, const Op& op) override {
    if (after_terminal_ && op.kind != OpKind::kDrop) {
      bytes = memory_.usage(Category::kActivations).live;
      after_terminal_ = false;
    }
  }
  void op_end(size_t /*index*/, const Op& op) override {
    after_terminal_ |= op.kind == OpKind::kForward && op.block == terminal_;
  }
  void step_end(const StepRecord& /*record*/) override {
    left = memory_.usage(Category::kActivations).live;
  }
  int64_t bytes = 0;
  int64_t left = -1;

 private:
  const MemoryContext& memory_;
  int terminal_;
  bool after_terminal_ = false;
};

int64_t activations(
    const TestFolder& folder,
    const std::string& policy,
    int64_t intermediate_size) {
  palimpsest::Run run(load_config_text(
      yaml(folder),
      "test.yaml",
      {"activation_checkpointing=" + policy,
       fmt::format("model.intermediate_size={}", intermediate_size),
       "training.output=" + (folder / "run"),
       "training.restart=true"}));
  BetweenForwardAndBackward seen(run.memory(), run.model().chain().terminal_index());
  run.prepare();
  run.train({&seen});
  EXPECT_EQ(seen.left, 0) << policy;
  return seen.bytes;
}

TEST(Activations, WithCheckpointingTheyAreTheLayersInputsWhateverTheirWidth) {
  const TestFolder folder;
  // Outside the layers: the micro-batch (ids and labels of 8 bytes a token, 8 for each row's
  // number) and the gradient that the head has left.
  constexpr int64_t kOutside = kBatch * kTokens * 2 * 8 + kBatch * 8 + kValue;
  for (const int64_t width : {56, 5600}) {
    EXPECT_EQ(activations(folder, "full", width), 24'576 + kOutside) << width;
    // Each run of two layers keeps one input.
    EXPECT_EQ(
        activations(folder, "{policy: every_n, n: 2, keep_last_segment: false}", width),
        2 * kValue + kOutside)
        << width;
    EXPECT_EQ(
        activations(folder, "{policy: uniform, segments: 1, keep_last_segment: false}", width),
        kValue + kOutside)
        << width;
  }
}

// Without it each of the four layers keeps at least the activation's two inputs, of the MLP's
// width.
TEST(Activations, WithoutCheckpointingTheyGrowWithTheWidth) {
  const TestFolder folder;
  const int64_t narrow = activations(folder, "none", 56);
  const int64_t wide = activations(folder, "none", 5600);
  EXPECT_GT(narrow, 24'576 + kLayers * 2 * kBatch * kTokens * 56 * 4);
  EXPECT_GE(wide - narrow, kLayers * 2 * kBatch * kTokens * (5600 - 56) * 4);
}

class AtSteps final : public Observer {
 public:
  explicit AtSteps(const MemoryContext& memory) : memory_(memory) {}
  void step_end(const StepRecord& record) override {
    if (record.step == 20 || record.step == 200) {
      live.push_back(memory_.total().live);
      unattributed.push_back(MemoryContext::process().total().live);
      rss.push_back(current_rss());
    }
  }
  std::vector<int64_t> live;
  std::vector<int64_t> unattributed;
  std::vector<int64_t> rss;

 private:
  const MemoryContext& memory_;
};

// Neither between steps nor between lines of the log.
class Flatness : public ::testing::TestWithParam<int64_t> {};

TEST_P(Flatness, NothingPilesUpOverSteps) {
  const TestFolder folder;
  for (const char* policy : {"none", "full"}) {
    palimpsest::Run run(load_config_text(
        yaml(folder),
        "test.yaml",
        {std::string("activation_checkpointing=") + policy,
         "training.gradient_accumulation_steps=4",
         "training.micro_batch_size=1",
         "training.steps=200",
         "training.output=" + (folder / "run"),
         "training.restart=true"}));
    AtSteps seen(run.memory());
    run.prepare();
    std::ostringstream log;
    Progress progress(run.batches().step_count(), GetParam(), log);
    run.train({&progress, &seen});
    ASSERT_EQ(seen.live.size(), 2U);
    EXPECT_EQ(seen.live[0], seen.live[1]) << policy;
    EXPECT_EQ(seen.unattributed[0], seen.unattributed[1]) << policy;
    EXPECT_LE(std::abs(seen.rss[1] - seen.rss[0]), 2 << 20) << policy;
  }
}

INSTANTIATE_TEST_SUITE_P(LogIntervals, Flatness, ::testing::Values(1, 10, 1000));

} // namespace
} // namespace palimpsest
