// Covers: attention_block.cc, embedding_block.cc
// Sequences that share a row give what they give in rows of their own.

#include <palimpsest/tests/core/models/chain_driver.h>

#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/models/head_block.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace palimpsest {
namespace {

constexpr double kTolerance = 1e-5; // of the largest value, as of the reference's own

class Packed : public testing::TestWithParam<const char*> {
 protected:
  Packed()
      : folder_(model_folder(GetParam())),
        config_(parse_decoder_config(folder_.config_text(), folder_.config_path())),
        driver_(build_decoder(config_)),
        apart_(token_batch(golden("input_ids"), golden("labels"))) {
    settle_folder(folder_, config_);
    load_weights(folder_, driver_.chain(), driver_.source());
  }
  at::Tensor golden(const std::string& name) const {
    return read_tensor(model_folder(GetParam()) + "/golden.safetensors", name);
  }
  /// Both sequences of the reference in one row, and some padding.
  MicroBatch in_one_row() const {
    constexpr int64_t kPadding = 3;
    const int64_t length = apart_.inputs.size(1);
    const at::Tensor padding = at::zeros({1, kPadding}, at::kLong);
    const at::Tensor places = at::arange(length, at::kLong).unsqueeze(0);
    MicroBatch packed = apart_;
    packed.inputs = at::cat({apart_.inputs.reshape({1, -1}), padding}, 1);
    packed.labels = at::cat({apart_.labels.reshape({1, -1}), padding.add(kIgnoredLabel)}, 1);
    packed.positions = at::cat({places, places, at::arange(kPadding, at::kLong).unsqueeze(0)}, 1);
    packed.rows = apart_.rows.narrow(0, 0, 1);
    return packed;
  }

  HfFolder folder_;
  DecoderConfig config_;
  ChainDriver driver_;
  MicroBatch apart_; // the reference's two sequences
};

TEST_P(Packed, LogitsLossAndEveryGradient) {
  const MicroBatch packed = in_one_row();
  const int64_t tokens = apart_.inputs.numel();
  const double loss = golden("loss").item<double>();
  for (const bool recompute : {false, true}) {
    for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
      const StepResult step =
          driver_.run({packed}, {.tape = tape, .recompute = recompute, .training = false});
      EXPECT_NEAR(
          step.loss_sum / static_cast<double>(packed.target_count), loss, kTolerance * loss);
      const at::Tensor logits = dynamic_cast<const HeadBlock&>(*driver_.chain().terminal)
                                    .logits(step.terminal_inputs[0])
                                    .narrow(1, 0, tokens);
      const at::Tensor expected = golden("logits");
      EXPECT_LE(relative_difference(logits.reshape(expected.sizes()), expected), kTolerance);
      for (const std::string& name : driver_.parameter_names()) {
        EXPECT_LE(relative_difference(driver_.gradient(name), golden("grad." + name)), kTolerance)
            << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    Packed,
    testing::Values(
        "llama-tiny",
        "llama3-rope",
        "mistral-tiny",
        "qwen2-tiny",
        "qwen3-tiny",
        "gemma-tiny",
        "gpt2-tiny",
        "mistral-window",
        "qwen2-window"),
    [](const auto& test) {
      std::string name = test.param;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

} // namespace
} // namespace palimpsest
