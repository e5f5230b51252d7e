// Covers: attention_block.cc, embedding_block.cc
// Sequences that share a row give what they give in rows of their own.

#include <palimpsest/tests/core/models/chain_driver.h>
#include <palimpsest/tests/support/models/golden_models.h>

#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/models/head_block.h>

#include <gtest/gtest.h>

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
  HfFolder folder_;
  DecoderConfig config_;
  ChainDriver driver_;
  MicroBatch apart_; // the reference's two sequences
};

TEST_P(Packed, LogitsLossAndEveryGradient) {
  const MicroBatch packed = in_one_row(apart_);
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

INSTANTIATE_TEST_SUITE_P(Models, Packed, ::testing::ValuesIn(kGoldenModels), golden_model_name);

} // namespace
} // namespace palimpsest
