#include <palimpsest/core/io/adapter_set.h>

#include <palimpsest/tests/core/io/testing.h>

#include <algorithm>
#include <cmath>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;

/// 4 layers, hidden 24, 4 heads and 2 of keys and values, inner size 56.
DecoderConfig small(const char* family = "llama") {
  DecoderConfig config;
  config.family = find_decoder_family(family);
  config.vocab_size = 67;
  config.hidden_size = 24;
  config.intermediate_size = 56;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.num_key_value_heads = config.family->rotary ? 2 : 4;
  return complete_decoder_config(config, "test");
}

int64_t elements(const std::vector<TensorDeclaration>& tensors) {
  int64_t count = 0;
  for (const TensorDeclaration& tensor : tensors) {
    count += tensor.elements();
  }
  return count;
}

TEST(AdapterSet, OfTwoProjectionsHasThePublishedCount) {
  const auto layers = linear_layers(small());
  const AdapterSet set =
      choose_adapters({.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj"}}, layers);
  EXPECT_EQ(set.layers.size(), 8);
  const auto tensors = adapter_tensors(set, layers);
  // a layer's q has A [4,24] and B [24,4], its v A [4,24] and B [12,4]
  EXPECT_EQ(elements(tensors), 4 * (4 * 24 + 24 * 4 + 4 * 24 + 12 * 4));
  EXPECT_EQ(elements(tensors), 1344);
  EXPECT_EQ(tensors[0].name, "model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(tensors[3].shape, (std::vector<int64_t>{12, 4}));
  for (const TensorDeclaration& tensor : tensors) {
    EXPECT_TRUE(is_adapter(tensor.name));
  }
  EXPECT_FALSE(is_adapter("model.layers.0.self_attn.q_proj.weight"));
}

TEST(AdapterSet, AllLinearLeavesEmbeddingAndHeadOut) {
  const auto layers = linear_layers(small());
  const AdapterSet set = choose_adapters({.targets = {"all-linear"}}, layers);
  EXPECT_EQ(set.layers.size(), 4 * 7);
  EXPECT_FALSE(set.layers.contains("lm_head"));
  EXPECT_EQ(last_parts(layers), "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj");
}

// Its q, k and v are one layer, whose weight is stored [in, out].
TEST(AdapterSet, Gpt2sLayersAreThoseOfItsModules) {
  const auto layers = linear_layers(small("gpt2"));
  EXPECT_EQ(layers.size(), 4 * 4);
  EXPECT_EQ(layers[0].name, "transformer.h.0.attn.c_attn");
  EXPECT_EQ(layers[0].outputs, 72);
  EXPECT_EQ(layers[0].inputs, 24);
  EXPECT_EQ(layers[3].outputs, 24);
  EXPECT_EQ(layers[3].inputs, 56);
  const AdapterSet set = choose_adapters({.targets = {"mlp.c_proj"}}, layers);
  EXPECT_EQ(set.layers.size(), 4);
  EXPECT_TRUE(set.layers.contains("transformer.h.3.mlp.c_proj"));
}

TEST(AdapterSet, TheFirstPatternThatIsFoundCounts) {
  const auto layers = linear_layers(small());
  const AdapterSet set = choose_adapters(
      {.rank = 8,
       .alpha = 16,
       .targets = {"all-linear"},
       .patterns =
           {{.match = "layers\\.[01]\\..*q_proj", .rank = 2, .alpha = {}},
            {.match = "q_proj$", .rank = 3, .alpha = 6}}},
      layers);
  EXPECT_EQ(set.layers.at("model.layers.1.self_attn.q_proj"), (AdapterShape{2, 16}));
  EXPECT_EQ(set.layers.at("model.layers.2.self_attn.q_proj"), (AdapterShape{3, 6}));
  EXPECT_EQ(set.layers.at("model.layers.2.self_attn.k_proj"), (AdapterShape{8, 16}));
}

TEST(AdapterSet, ScalesByTheRankOrItsRoot) {
  EXPECT_EQ((AdapterSet{.rslora = false}.scale({.rank = 16, .alpha = 32})), 2);
  EXPECT_EQ((AdapterSet{.rslora = true}.scale({.rank = 16, .alpha = 32})), 8);
}

TEST(AdapterSet, RefusesWhatMatchesNothing) {
  const auto layers = linear_layers(small());
  const auto message = [&](const AdapterChoice& choice) {
    return message_of<UserError>([&] { choose_adapters(choice, layers); });
  };
  EXPECT_THAT(
      message({.targets = {"q_proj", "query"}}),
      AllOf(HasSubstr("lora.target_modules"), HasSubstr("'query'"), HasSubstr("down_proj, gate")));
  // a part of a last part is no name
  EXPECT_THAT(message({.targets = {"proj"}}), HasSubstr("'proj'"));
  EXPECT_THAT(message({.targets = {"lm_head"}}), HasSubstr("'lm_head'"));
  EXPECT_THAT(message({.targets = {"all-linear", "q_proj"}}), HasSubstr("alone"));
  EXPECT_THAT(
      message({.targets = {"q_proj"}, .patterns = {{.match = "k_proj", .rank = 2, .alpha = {}}}}),
      AllOf(HasSubstr("lora.patterns"), HasSubstr("'k_proj'")));
  EXPECT_THAT(
      message({.targets = {"q_proj"}, .patterns = {{.match = "(", .rank = 2, .alpha = {}}}}),
      HasSubstr("lora.patterns"));
}

} // namespace
} // namespace palimpsest
