#include <palimpsest/core/io/decoder_tensors.h>

#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/tests/core/io/testing.h>

namespace palimpsest {
namespace {

DecoderConfig small() {
  DecoderConfig config;
  config.vocab_size = 67;
  config.hidden_size = 24;
  config.intermediate_size = 56;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  return complete_decoder_config(config, "test");
}

TEST(DecoderTensors, CountsTheParametersOfThePublishedFormula) {
  // 4 layers of 24 x 24 (q, o), 12 x 24 (k, v), 3 x 56 x 24 and two norms; the last norm; embedding
  // and head.
  DecoderConfig config = small();
  constexpr int64_t kLayer = 2 * 24 * 24 + 2 * 12 * 24 + 3 * 56 * 24 + 2 * 24;
  EXPECT_EQ(kLayer, 5808);
  EXPECT_EQ(parameter_count(config), 4 * kLayer + 24 + 2 * 67 * 24);
  config.tie_word_embeddings = true;
  EXPECT_EQ(parameter_count(config), 24'864);
  config.qkv_bias = true;
  config.output_bias = true;
  EXPECT_EQ(parameter_count(config), 24'864 + 4 * (24 + 12 + 12 + 24));
  config.qkv_bias = false;
  config.output_bias = false;
  config.mlp_bias = true;
  EXPECT_EQ(parameter_count(config), 24'864 + 4 * (56 + 56 + 24));
}

// The folders are transformers' own: their names and shapes are the reference.
TEST(DecoderTensors, AreThoseOfTheGoldenFolders) {
  for (const char* name :
       {"llama-tiny",
        "llama-tied",
        "mistral-tiny",
        "qwen2-tiny",
        "qwen3-tiny",
        "gemma-tiny",
        "gpt2-tiny",
        "qwen2-window"}) {
    SCOPED_TRACE(name);
    HfFolder folder(golden_model(name));
    const DecoderConfig config = parse_decoder_config(folder.config_text(), folder.config_path());
    settle_folder(folder, config);
    folder.compare_with(decoder_tensors(config));
    EXPECT_EQ(decoder_tensors(config).size(), folder.tensors().size());
  }
}

TEST(DecoderTensors, ATensorOfAFolderHasOneNameInTheModel) {
  using ::testing::Contains;
  EXPECT_THAT(model_names("model.norm.weight"), Contains("model.norm.weight"));
  EXPECT_THAT(model_names("h.0.ln_1.bias"), Contains("transformer.h.0.ln_1.bias"));
  EXPECT_THAT(model_names(kHeadName), Contains("model.embed_tokens.weight"));
  EXPECT_THAT(model_names(kHeadName), Contains("transformer.wte.weight"));
  EXPECT_EQ(model_names(kHeadName).front(), kHeadName);
}

} // namespace
} // namespace palimpsest
