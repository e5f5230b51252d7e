// Covers: core/io/rope_config.cc, core/io/decoder_family.cc
#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/io/decoder_tensors.h>

#include <palimpsest/tests/core/io/testing.h>

#include <nlohmann/json.hpp>

#include <limits>

namespace palimpsest {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json small() {
  return {
      {"architectures", json::array({"LlamaForCausalLM"})},
      {"model_type", "llama"},
      {"vocab_size", 67},
      {"hidden_size", 24},
      {"intermediate_size", 56},
      {"num_hidden_layers", 4},
      {"num_attention_heads", 4}};
}

DecoderConfig parse(const json& config) {
  return parse_decoder_config(config.dump(), "m/config.json");
}

/// The message where `changes` are merged into a config that is right.
std::string refusal(const json& changes) {
  json config = small();
  config.update(changes);
  return message_of<UserError>([&] { parse(config); });
}

TEST(DecoderConfig, ReadsTheGoldenModelsInBothSpellings) {
  struct Expected {
    const char* name;
    int64_t layers, vocabulary, parameters;
    bool tied;
    StoredDtype dtype;
  };
  // As published with the models: layers, vocabulary and number of parameters.
  for (const Expected& expected : {
           Expected{"llama-tiny", 4, 512, 250'432, false, StoredDtype::F32},
           Expected{"llama-tied", 2, 512, 125'248, true, StoredDtype::F32},
           Expected{"llama3-rope", 2, 320, 133'440, false, StoredDtype::F32},
           Expected{"llama-bf16-sharded", 2, 320, 133'440, false, StoredDtype::BF16},
       }) {
    SCOPED_TRACE(expected.name);
    const auto read = [&](const char* file) {
      const auto path = golden_model(expected.name) / file;
      return parse_decoder_config(read_file(path), path.string());
    };
    const DecoderConfig config = read("config.json");
    EXPECT_EQ(config.num_hidden_layers, expected.layers);
    EXPECT_EQ(config.vocab_size, expected.vocabulary);
    EXPECT_EQ(config.tie_word_embeddings, expected.tied);
    EXPECT_EQ(config.dtype, expected.dtype);
    EXPECT_EQ(parameter_count(config), expected.parameters);
    EXPECT_EQ(config.hidden_size, 64);
    EXPECT_EQ(config.num_key_value_heads, 2);
    EXPECT_EQ(config.head_dim, 16);
    EXPECT_EQ(config.norm_eps, 1e-5);
    EXPECT_EQ(config.max_position_embeddings, 512);
    EXPECT_EQ(config, read("config.v5.json"));
  }
}

DecoderConfig golden_config(const char* name, const char* file = "config.json") {
  const auto path = golden_model(name) / file;
  return parse_decoder_config(read_file(path), path.string());
}

TEST(DecoderConfig, ReadsEveryFamilyInBothSpellings) {
  for (const DecoderFamily& family : decoder_families()) {
    const std::string name = std::string(family.name) + "-tiny";
    SCOPED_TRACE(name);
    const DecoderConfig config = golden_config(name.c_str());
    EXPECT_EQ(config.family, &family);
    EXPECT_EQ(config, golden_config(name.c_str(), "config.v5.json"));
  }
  // As published with the models.
  EXPECT_EQ(parameter_count(golden_config("mistral-tiny")), 133'440);
  EXPECT_EQ(parameter_count(golden_config("qwen2-tiny")), 133'696);
  EXPECT_EQ(parameter_count(golden_config("qwen3-tiny")), 137'664);
  EXPECT_EQ(parameter_count(golden_config("gemma-tiny")), 83'184);
  EXPECT_EQ(parameter_count(golden_config("gpt2-tiny")), 124'672);

  const DecoderConfig qwen2 = golden_config("qwen2-tiny");
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias || qwen2.mlp_bias);
  EXPECT_EQ(golden_config("qwen3-tiny").head_dim, 32);
  const DecoderConfig gemma = golden_config("gemma-tiny");
  EXPECT_TRUE(gemma.tie_word_embeddings); // the file does not say so: the class does
  EXPECT_EQ(gemma.hidden_act, HiddenAct::kGeluTanh);
  const DecoderConfig gpt2 = golden_config("gpt2-tiny");
  EXPECT_EQ(gpt2.intermediate_size, 256);
  EXPECT_EQ(gpt2.max_position_embeddings, 64);
  EXPECT_EQ(gpt2.num_key_value_heads, 4);
  EXPECT_EQ(gpt2.norm_eps, 1e-5);
  EXPECT_EQ(gpt2.hidden_act, HiddenAct::kGeluTanh);
  EXPECT_EQ(gpt2.attention_dropout, 0.1);
  EXPECT_EQ(gpt2.residual_dropout, 0.1);
  EXPECT_EQ(gpt2.embedding_dropout, 0.1);
}

/// `small()` as another family has it.
json small_of(const char* name) {
  json config = small();
  const DecoderFamily& family = *find_decoder_family(name);
  for (const auto& [key, spelling] : family.spellings) {
    if (config.contains(key)) {
      config[std::string(spelling)] = config[std::string(key)];
      config.erase(std::string(key));
    }
  }
  config["model_type"] = name;
  config["architectures"] = json::array({std::string(family.architecture)});
  config["head_dim"] = 6;
  return config;
}

std::vector<int64_t> windows_of(const char* family, const json& changes) {
  json config = small_of(family);
  config.update(changes);
  return parse(config).windows;
}

std::string refusal_of(const char* family, const json& changes) {
  json config = small_of(family);
  config.update(changes);
  return message_of<UserError>([&] { parse(config); });
}

TEST(DecoderConfig, ReadsTheWindowsOfEachFamily) {
  using Windows = std::vector<int64_t>;
  const json every = json::array(
      {"sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention"});
  const json some =
      json::array({"full_attention", "sliding_attention", "full_attention", "sliding_attention"});
  EXPECT_EQ(windows_of("mistral", json::object()), Windows(4, 4096)); // the class's own
  EXPECT_EQ(windows_of("mistral", {{"sliding_window", nullptr}}), Windows());
  EXPECT_EQ(windows_of("mistral", {{"sliding_window", 7}}), Windows(4, 7));
  EXPECT_EQ(windows_of("mistral", {{"sliding_window", 7}, {"layer_types", every}}), Windows(4, 7));
  for (const char* qwen : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows_of(qwen, {{"sliding_window", 7}}), Windows());
    const json on = {{"use_sliding_window", true}, {"sliding_window", 7}};
    EXPECT_EQ(windows_of(qwen, on), Windows()); // 28 layers see all
    json from = on;
    from["max_window_layers"] = 1;
    EXPECT_EQ(windows_of(qwen, from), (Windows{0, 7, 7, 7}));
    from["layer_types"] = some; // wins
    EXPECT_EQ(windows_of(qwen, from), (Windows{0, 7, 0, 7}));
    EXPECT_THAT(refusal_of(qwen, {{"layer_types", some}}), HasSubstr("layer_types"));
    EXPECT_THAT(
        refusal_of(qwen, {{"layer_types", json::array({"full_attention"})}}),
        HasSubstr("one a layer"));
  }
  EXPECT_THAT(
      refusal_of("mistral", {{"sliding_window", 7}, {"layer_types", some}}),
      HasSubstr("layer_types"));
  for (const char* none : {"llama", "gemma", "gpt2"}) {
    EXPECT_THAT(refusal_of(none, {{"sliding_window", 7}}), HasSubstr("sliding_window is 7"));
    EXPECT_THAT(refusal_of(none, {{"layer_types", some}}), HasSubstr("layer_types"));
  }
}

TEST(DecoderConfig, RefusesWhatTheFamiliesDoNotCompute) {
  // Gemma 2's
  for (const char* key :
       {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}) {
    EXPECT_THAT(refusal_of("gemma", {{key, 50.0}}), HasSubstr(key));
  }
  EXPECT_THAT(
      refusal_of("gemma", {{"use_bidirectional_attention", true}}),
      HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(
      refusal_of("mistral", {{"quantization_config", {{"quant_method", "awq"}}}}),
      HasSubstr("quantization_config"));
  EXPECT_THAT(refusal_of("mistral", {{"attention_bias", true}}), HasSubstr("attention_bias"));
  EXPECT_THAT(refusal_of("qwen2", {{"mlp_bias", true}}), HasSubstr("mlp_bias"));
  EXPECT_THAT(refusal_of("gpt2", {{"scale_attn_weights", false}}), HasSubstr("scale_attn_weights"));
  EXPECT_THAT(
      refusal_of("gpt2", {{"scale_attn_by_inverse_layer_idx", true}}),
      HasSubstr("scale_attn_by_inverse_layer_idx"));
  EXPECT_THAT(
      refusal_of("gpt2", {{"add_cross_attention", true}}), HasSubstr("add_cross_attention"));
  EXPECT_THAT(refusal_of("gpt2", {{"n_embd", nullptr}}), HasSubstr("n_embd is missing"));
  EXPECT_THAT(
      refusal_of("gpt2", {{"layer_norm_epsilon", 0}}), HasSubstr("layer_norm_epsilon is 0"));
  EXPECT_THAT(refusal_of("gpt2", {{"resid_pdrop", 1}}), HasSubstr("resid_pdrop is 1"));
  EXPECT_THAT(
      refusal_of("gemma", {{"hidden_act", "relu"}, {"hidden_activation", "silu"}}),
      HasSubstr("hidden_activation"));
}

// The official configs of the first Gemma say gelu; transformers takes the tanh form.
TEST(DecoderConfig, GemmasGeluIsTheTanhForm) {
  json config = small_of("gemma");
  config["hidden_act"] = "gelu";
  EXPECT_EQ(parse(config).hidden_act, HiddenAct::kGeluTanh);
  config["hidden_activation"] = "gelu_pytorch_tanh";
  EXPECT_EQ(parse(config).hidden_act, HiddenAct::kGeluTanh);
}

TEST(DecoderConfig, WritesEveryFamilyAsItReadsIt) {
  for (const DecoderFamily& family : decoder_families()) {
    SCOPED_TRACE(family.name);
    json given = small_of(family.name.data());
    if (family.windows == WindowRule::kByLayer) {
      given.update({{"use_sliding_window", true}, {"sliding_window", 9}, {"max_window_layers", 2}});
    }
    DecoderConfig config = parse(given);
    config.initializer_range = 0.05;
    config.tie_word_embeddings = !config.tie_word_embeddings;
    EXPECT_EQ(parse_decoder_config(write_decoder_config(config), "config.json"), config);
    config.windows.clear();
    EXPECT_EQ(parse_decoder_config(write_decoder_config(config), "config.json"), config);
  }
}

TEST(DecoderConfig, TakesTheFamilysDefaults) {
  const DecoderConfig config = parse(small());
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 6);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.hidden_act, HiddenAct::kSilu);
  EXPECT_EQ(config.rope, RopeConfig{});
  EXPECT_FALSE(
      config.tie_word_embeddings || config.qkv_bias || config.output_bias || config.mlp_bias);
  json with_nulls = small();
  with_nulls.update(
      {{"num_key_value_heads", nullptr}, {"head_dim", nullptr}, {"rope_scaling", nullptr}});
  EXPECT_EQ(parse(with_nulls), config);
}

TEST(DecoderConfig, IgnoresKeysThatChangeNoNumber) {
  json config = small();
  config.update(
      {{"bos_token_id", 1},
       {"eos_token_id", json::array({1, 2})},
       {"use_cache", false},
       {"transformers_version", "4.57.6"},
       {"anything", {{"nested", 1}}},
       {"sliding_window", 2048},
       {"layer_types", std::vector<std::string>(4, "full_attention")},
       {"pretraining_tp", 1}});
  EXPECT_EQ(parse(config), parse(small()));
  config["sliding_window"] = 16;
  config["use_sliding_window"] = false;
  EXPECT_EQ(parse(config), parse(small()));
}

TEST(DecoderConfig, RefusesOtherArchitecturesByName) {
  EXPECT_THAT(
      refusal({{"model_type", "gemma2"}}),
      AllOf(
          HasSubstr("m/config.json"),
          HasSubstr("\"gemma2\""),
          HasSubstr("llama, mistral, qwen2, qwen3, gemma, gpt2")));
  EXPECT_THAT(
      refusal({{"model_type", "mistral"}}),
      AllOf(HasSubstr("\"LlamaForCausalLM\""), HasSubstr("MistralForCausalLM")));
  EXPECT_THAT(
      refusal({{"architectures", json::array({"LlamaForSequenceClassification"})}}),
      AllOf(HasSubstr("architectures"), HasSubstr("\"LlamaForSequenceClassification\"")));
  EXPECT_THAT(refusal({{"model_type", nullptr}}), HasSubstr("model_type is missing"));
  EXPECT_THAT(refusal({{"architectures", 1}}), HasSubstr("architectures is 1"));
}

TEST(DecoderConfig, RefusesWhatChangesNumbersByName) {
  EXPECT_THAT(refusal({{"hidden_act", "mish"}}), AllOf(HasSubstr("\"mish\""), HasSubstr("relu")));
  EXPECT_THAT(refusal({{"sliding_window", 128}}), HasSubstr("sliding_window is 128"));
  EXPECT_THAT(refusal({{"pretraining_tp", 2}}), HasSubstr("pretraining_tp is 2"));
  EXPECT_THAT(
      refusal({{"layer_types", json::array({"sliding_attention"})}}), HasSubstr("layer_types"));
  EXPECT_THAT(refusal({{"partial_rotary_factor", 0.5}}), HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(refusal({{"quantization_config", {{"bits", 4}}}}), HasSubstr("quantization_config"));
  EXPECT_THAT(
      refusal({{"dtype", "float8"}}), AllOf(HasSubstr("\"float8\""), HasSubstr("bfloat16")));
  EXPECT_THAT(
      refusal({{"dtype", "float16"}, {"torch_dtype", "float32"}}), HasSubstr("torch_dtype"));
}

TEST(DecoderConfig, RefusesWrongSizesNamingFileAndKey) {
  for (const char* key :
       {"vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings"}) {
    for (const json& value :
         {json(0),
          json(-1),
          json(4.0),
          json("4"),
          json(true),
          json::array({4}),
          json(1LL << 62),
          json(std::numeric_limits<uint64_t>::max())}) {
      EXPECT_THAT(refusal({{key, value}}), AllOf(HasSubstr("m/config.json: "), HasSubstr(key)))
          << value;
    }
  }
  for (const char* key :
       {"vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads"}) {
    EXPECT_THAT(refusal({{key, nullptr}}), HasSubstr(std::string(key) + " is missing"));
  }
  for (const char* key : {"rms_norm_eps", "initializer_range", "attention_dropout"}) {
    for (const json& value : {json(-0.5), json("0"), json(false), json(1e30)}) {
      EXPECT_THAT(refusal({{key, value}}), HasSubstr(key)) << value;
    }
  }
  for (const char* key : {"tie_word_embeddings", "attention_bias", "mlp_bias"}) {
    EXPECT_THAT(refusal({{key, 1}}), HasSubstr(key));
  }
  EXPECT_THAT(refusal({{"rms_norm_eps", 0}}), HasSubstr("rms_norm_eps is 0"));
  EXPECT_THAT(refusal({{"attention_dropout", 1}}), HasSubstr("attention_dropout is 1"));
}

TEST(DecoderConfig, RefusesSizesThatDoNotFitTogether) {
  EXPECT_THAT(
      refusal({{"num_attention_heads", 5}}),
      AllOf(HasSubstr("hidden_size is 24"), HasSubstr("num_attention_heads (5)")));
  EXPECT_THAT(refusal({{"num_key_value_heads", 3}}), HasSubstr("num_key_value_heads (3)"));
  EXPECT_THAT(refusal({{"num_key_value_heads", 8}}), HasSubstr("num_key_value_heads (8)"));
  EXPECT_THAT(refusal({{"num_attention_heads", 8}}), HasSubstr("head_dim is 3"));
}

TEST(DecoderConfig, RefusesTextThatIsNoConfig) {
  for (const char* text : {"", "{", "[]", "null", "\"x\"", R"({"a":1,"a":2})", "{\"a\":NaN}"}) {
    EXPECT_THAT(
        message_of<UserError>([&] { parse_decoder_config(text, "m/config.json"); }),
        HasSubstr("m/config.json"))
        << text;
  }
}

RopeConfig rope_of(const json& changes) {
  json config = small();
  config.update(changes);
  return parse(config).rope;
}

TEST(DecoderConfig, ReadsRopeUnderEverySpelling) {
  const RopeConfig expected{.type = RopeType::kLinear, .theta = 5e5, .factor = 4.0};
  for (const json& config : {
           json{{"rope_theta", 5e5}, {"rope_scaling", {{"type", "linear"}, {"factor", 4}}}},
           json{
               {"rope_theta", 500000},
               {"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}}},
           json{{"rope_parameters", {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 5e5}}}},
           json{{"rope_theta", 5e5}, {"rope_parameters", {{"type", "linear"}, {"factor", 4}}}},
           json{
               {"rope_scaling", {{"type", "linear"}, {"rope_type", "linear"}, {"factor", 4}}},
               {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 5e5}}}},
       }) {
    EXPECT_EQ(rope_of(config), expected) << config;
  }
  EXPECT_EQ(rope_of({{"rope_parameters", {{"rope_theta", 1e6}}}}), RopeConfig{.theta = 1e6});
  EXPECT_EQ(rope_of({{"rope_scaling", {{"rope_type", "default"}}}}), RopeConfig{});
}

TEST(DecoderConfig, RefusesRopeSettingsThatItWouldMisread) {
  const auto scaling = [](const json& section) { return refusal({{"rope_scaling", section}}); };
  EXPECT_THAT(
      scaling({{"rope_type", "longrope"}, {"factor", 2}}),
      AllOf(HasSubstr("rope_scaling.rope_type"), HasSubstr("\"longrope\""), HasSubstr("llama3")));
  EXPECT_THAT(scaling({{"type", "su"}}), HasSubstr("rope_scaling.type is \"su\""));
  EXPECT_THAT(scaling({{"factor", 4}}), HasSubstr("rope_scaling.rope_type is missing"));
  EXPECT_THAT(scaling({{"type", "linear"}}), HasSubstr("rope_scaling.factor is missing"));
  EXPECT_THAT(scaling({{"type", "linear"}, {"factor", 0.5}}), HasSubstr("factor is 0.5"));
  EXPECT_THAT(scaling({{"type", "linear"}, {"factor", "4"}}), HasSubstr("factor is \"4\""));
  EXPECT_THAT(scaling({{"type", "linear"}, {"rope_type", "yarn"}}), HasSubstr("rope_type"));
  EXPECT_THAT(
      scaling({{"type", "linear"}, {"factor", 4}, {"short_factor", json::array({1})}}),
      HasSubstr("rope_scaling.short_factor"));
  EXPECT_THAT(
      scaling({{"type", "linear"}, {"factor", 4}, {"low_freq_factor", 1}}),
      HasSubstr("low_freq_factor"));
  EXPECT_THAT(scaling(5), HasSubstr("rope_scaling must be an object"));
  const json llama3 = {
      {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  EXPECT_THAT(scaling(llama3), HasSubstr("original_max_position_embeddings is missing"));
  json swapped = llama3;
  swapped.update(
      {{"low_freq_factor", 4}, {"high_freq_factor", 1}, {"original_max_position_embeddings", 64}});
  EXPECT_THAT(scaling(swapped), HasSubstr("low_freq_factor is 4"));
  EXPECT_THAT(
      scaling({{"type", "yarn"}, {"factor", 4}, {"beta_fast", 1}, {"beta_slow", 32}}),
      HasSubstr("beta_slow is 32"));
  EXPECT_THAT(refusal({{"rope_theta", 1}}), HasSubstr("rope_theta is 1"));
  EXPECT_THAT(
      refusal({{"rope_theta", 1e4}, {"rope_parameters", {{"rope_theta", 5e5}}}}),
      AllOf(HasSubstr("rope_theta is 10000"), HasSubstr("500000")));
  EXPECT_THAT(
      refusal(
          {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
           {"rope_parameters", {{"type", "linear"}, {"factor", 4}}}}),
      HasSubstr("rope_parameters"));
}

TEST(DecoderConfig, WritesWhatItReads) {
  RopeConfig yarn{.type = RopeType::kYarn, .theta = 1e6, .factor = 4.0};
  yarn.original_max_position_embeddings = 64;
  yarn.beta_fast = 16.5;
  yarn.attention_factor = 0.75;
  yarn.mscale = 0.707;
  yarn.mscale_all_dim = 1.0;
  yarn.truncate = false;
  const RopeConfig ropes[] = {
      {},
      {.theta = 5e5},
      {.type = RopeType::kLinear, .factor = 4.0},
      {.type = RopeType::kDynamic, .factor = 2.5},
      {.type = RopeType::kLlama3,
       .theta = 5e5,
       .factor = 8.0,
       .original_max_position_embeddings = 64},
      yarn};
  for (const RopeConfig& rope : ropes) {
    for (const HiddenAct act :
         {HiddenAct::kSilu, HiddenAct::kGelu, HiddenAct::kGeluTanh, HiddenAct::kRelu}) {
      DecoderConfig config = parse(small());
      config.rope = rope;
      config.hidden_act = act;
      config.dtype = StoredDtype::BF16;
      config.norm_eps = 1e-5;
      config.qkv_bias = true;
      config.output_bias = true;
      config.attention_dropout = 0.1;
      const std::string text = write_decoder_config(config);
      EXPECT_EQ(parse_decoder_config(text, "config.json"), config) << text;
    }
  }
  // Absent token ids would become transformers' own defaults.
  const json written = json::parse(write_decoder_config(parse(small())));
  EXPECT_TRUE(written.at("eos_token_id").is_null());
  EXPECT_EQ(written.at("architectures"), json::array({"LlamaForCausalLM"}));
}

TEST(CompleteDecoderConfig, ChecksExplicitNumbers) {
  DecoderConfig config;
  EXPECT_THAT(
      message_of<UserError>([&] { complete_decoder_config(config, "model"); }),
      HasSubstr("model: vocab_size is 0"));
  config = parse(small());
  config.rope.theta = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(complete_decoder_config(config, "model"), UserError);
  config = parse(small());
  config.num_key_value_heads = -1;
  EXPECT_THROW(complete_decoder_config(config, "model"), UserError);
}

TEST(DecoderConfig, ActivationsByAllTheirNames) {
  for (const HiddenAct act :
       {HiddenAct::kSilu, HiddenAct::kGelu, HiddenAct::kGeluTanh, HiddenAct::kRelu}) {
    EXPECT_EQ(parse_hidden_act(name_of(act)), act);
  }
  EXPECT_EQ(parse_hidden_act("swish"), HiddenAct::kSilu);
  EXPECT_EQ(parse_hidden_act("gelu_new"), HiddenAct::kGeluTanh);
  EXPECT_EQ(parse_hidden_act("tanh"), std::nullopt);
}

} // namespace
} // namespace palimpsest
