#include <palimpsest/core/io/peft_folder.h>

#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/io/json.h>
#include <palimpsest/tests/core/io/testing.h>

#include <cstring>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path golden_adapter(std::string_view name) {
  return fs::path(PALIMPSEST_TEST_DATA) / "lora" / name;
}

std::vector<LinearDeclaration> layers_of(std::string_view model) {
  const HfFolder folder(golden_model(model));
  return linear_layers(parse_decoder_config(folder.config_text(), folder.config_path()));
}

AdapterSet parse(const std::string& keys, std::string_view model = "llama-tiny") {
  return parse_peft_config(
      R"({"peft_type": "LORA", "target_modules": ["q_proj"])" + keys + "}",
      "adapter_config.json",
      layers_of(model));
}

TEST(PeftFolder, ReadsWhatPeftWrote) {
  const auto layers = layers_of("llama-tiny");
  const PeftFolder two(golden_adapter("llama-tiny-qv"), layers);
  EXPECT_EQ(two.adapters().layers.size(), 8);
  EXPECT_EQ(two.adapters().scale(two.adapters().usual), 2);
  const std::string name = "model.layers.3.self_attn.v_proj.lora_B.weight";
  EXPECT_EQ(two.at(name).shape, (std::vector<int64_t>{32, 4}));
  EXPECT_EQ(two.bytes(name).size(), 32 * 4 * 4);
  const PeftFolder all(golden_adapter("llama-tiny-rslora"), layers);
  EXPECT_EQ(all.adapters().layers.size(), 4 * 7);
  EXPECT_EQ(all.adapters().scale(all.adapters().usual), 4);
}

TEST(PeftFolder, ReadsPatternsAndFusedLayers) {
  const PeftFolder folder(golden_adapter("gpt2-tiny-patterns"), layers_of("gpt2-tiny"));
  const auto& layers = folder.adapters().layers;
  EXPECT_EQ(layers.size(), 8);
  EXPECT_EQ(layers.at("transformer.h.0.attn.c_attn"), (AdapterShape{2, 8}));
  EXPECT_EQ(layers.at("transformer.h.0.attn.c_proj"), (AdapterShape{4, 3.5}));
  EXPECT_EQ(layers.at("transformer.h.0.mlp.c_proj"), (AdapterShape{4, 8}));
  EXPECT_EQ(layers.at("transformer.h.1.mlp.c_fc"), (AdapterShape{6, 8}));
  EXPECT_EQ(folder.at("transformer.h.1.mlp.c_fc.lora_A.weight").shape[0], 6);
}

TEST(PeftFolder, WritesWhatItReads) {
  for (const auto& [name, model] :
       {std::pair("llama-tiny-qv", "llama-tiny"),
        std::pair("llama-tiny-rslora", "llama-tiny"),
        std::pair("gpt2-tiny-patterns", "gpt2-tiny")}) {
    SCOPED_TRACE(name);
    const auto layers = layers_of(model);
    const PeftFolder folder(golden_adapter(name), layers);
    TemporaryFolder out;
    write_hf_folder(
        out / "adapter",
        peft_layout(
            folder.adapters(),
            layers,
            {.base_model = "there", .weights_in_out = model == std::string("gpt2-tiny")}),
        [&](const StoredTensor& tensor, std::span<std::byte> bytes) {
          const auto from = folder.bytes(peft_parameter(tensor.name));
          ASSERT_EQ(from.size(), bytes.size());
          std::memcpy(bytes.data(), from.data(), from.size());
        });
    const PeftFolder again(out / "adapter", layers);
    EXPECT_EQ(again.adapters(), folder.adapters());
    // the tensors' file is PEFT's, byte for byte
    EXPECT_EQ(
        read_file(out / "adapter" / "adapter_model.safetensors"),
        read_file(golden_adapter(name) / "adapter_model.safetensors"));
    const auto written = parse_json(read_file(out / "adapter" / "adapter_config.json"), "written");
    const auto golden =
        parse_json(read_file(golden_adapter(name) / "adapter_config.json"), "golden");
    for (const char* key : {"r", "lora_alpha", "use_rslora", "fan_in_fan_out", "peft_type"}) {
      EXPECT_EQ(written[key], golden[key]) << key;
    }
    EXPECT_EQ(written["base_model_name_or_path"], "there");
  }
}

TEST(PeftFolder, TargetsAreNamesWherePartsWouldChooseMore) {
  const auto layers = layers_of("llama-tiny");
  AdapterSet set = parse("");
  EXPECT_THAT(write_peft_config(set, layers, {}), HasSubstr(R"("q_proj")"));
  set.layers.erase("model.layers.1.self_attn.q_proj");
  const std::string text = write_peft_config(set, layers, {});
  EXPECT_THAT(text, HasSubstr(R"("model.layers.0.self_attn.q_proj")"));
  EXPECT_EQ(parse_peft_config(text, "written", layers), set);
}

// PEFT's rules of which layers a config is for.
TEST(PeftFolder, ChoosesLayersAsPeftDoes) {
  const auto chosen = [](const std::string& keys) {
    const std::string json = R"({"peft_type": "LORA", )" + keys + "}";
    std::vector<std::string> names;
    for (const auto& [name, shape] :
         parse_peft_config(json, "adapter_config.json", layers_of("llama-tiny")).layers) {
      names.push_back(name.substr(std::string("model.layers.").size()));
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(chosen(R"("target_modules": "all-linear")").size(), 28);
  EXPECT_EQ(
      chosen(R"("target_modules": ".*layers\\.[02]\\.mlp\\.up_proj")"),
      (Names{"0.mlp.up_proj", "2.mlp.up_proj"}));
  EXPECT_EQ(
      chosen(R"("target_modules": ["q_proj"], "layers_to_transform": [1, 3])"),
      (Names{"1.self_attn.q_proj", "3.self_attn.q_proj"}));
  EXPECT_EQ(
      chosen(
          R"("target_modules": ["mlp.up_proj"], "layers_to_transform": 2, "layers_pattern": "layers")"),
      (Names{"2.mlp.up_proj"}));
  EXPECT_EQ(
      chosen(
          R"("target_modules": ["q_proj", "k_proj"], "layers_to_transform": 2, "exclude_modules": ["k_proj"])"),
      (Names{"2.self_attn.q_proj"}));
  EXPECT_EQ(
      chosen(R"("target_modules": ["q_proj"], "exclude_modules": ".*[0-2].self_attn.*")"),
      (Names{"3.self_attn.q_proj"}));
}

struct Refusal {
  std::string keys;
  std::string named;
};
class RefusedConfig : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedConfig, IsRefusedByName) {
  const std::string message = message_of<UserError>([&] { parse(GetParam().keys); });
  EXPECT_THAT(message, HasSubstr("adapter_config.json"));
  EXPECT_THAT(message, HasSubstr(GetParam().named));
}

INSTANTIATE_TEST_SUITE_P(
    Keys,
    RefusedConfig,
    testing::Values(
        Refusal{R"(, "use_dora": true)", "use_dora"},
        Refusal{R"(, "bias": "all")", "bias"},
        Refusal{R"(, "lora_bias": true)", "lora_bias"},
        Refusal{R"(, "modules_to_save": ["lm_head"])", "modules_to_save"},
        Refusal{R"(, "trainable_token_indices": [1])", "trainable_token_indices"},
        Refusal{R"(, "layer_replication": [[0, 2]])", "layer_replication"},
        Refusal{R"(, "use_something_new": true)", "use_something_new"},
        Refusal{R"(, "init_lora_weights": "pissa")", "init_lora_weights"},
        Refusal{R"(, "r": 0)", "r is 0"},
        Refusal{R"(, "lora_alpha": 0)", "lora_alpha"},
        Refusal{R"(, "lora_dropout": 1.0)", "lora_dropout"},
        Refusal{R"(, "rank_pattern": {"k_proj": 2})", "rank_pattern"},
        Refusal{R"(, "rank_pattern": {"q_proj": 2.5})", "rank_pattern"},
        Refusal{R"(, "rank_pattern": {"q_proj": 2, "self_attn.q_proj": 3})", "two values"},
        Refusal{R"(, "alpha_pattern": 3)", "alpha_pattern"},
        Refusal{R"(, "layers_to_transform": [9])", "choose no linear layer"},
        Refusal{R"(, "layers_to_transform": ["a"])", "layers_to_transform"},
        Refusal{R"(, "exclude_modules": 3)", "exclude_modules"},
        Refusal{R"(, "exclude_modules": ["q_proj"])", "choose no linear layer"}));

TEST(PeftFolder, RefusesOtherMethodsAndUnknownTargets) {
  const auto layers = layers_of("llama-tiny");
  const auto message = [&](const std::string& json) {
    return message_of<UserError>([&] { parse_peft_config(json, "adapter_config.json", layers); });
  };
  EXPECT_THAT(message(R"({"peft_type": "IA3"})"), HasSubstr("peft_type"));
  EXPECT_THAT(message("{}"), HasSubstr("peft_type"));
  EXPECT_THAT(message("[]"), HasSubstr("adapter_config.json"));
  EXPECT_THAT(
      message(R"({"peft_type": "LORA", "target_modules": ["query"]})"),
      AllOf(HasSubstr("query"), HasSubstr("q_proj")));
  EXPECT_THAT(
      message(R"({"peft_type": "LORA", "target_modules": [3]})"), HasSubstr("target_modules"));
  EXPECT_THAT(
      message(R"x({"peft_type": "LORA", "target_modules": "(?P<x>q)"})x"),
      HasSubstr("target_modules"));
  EXPECT_THAT(message(R"({"peft_type": "LORA"})"), HasSubstr("target_modules"));
}

TEST(PeftFolder, NamesEveryTensorThatDoesNotFit) {
  const auto layers = layers_of("llama-tiny");
  TemporaryFolder folder;
  EXPECT_THAT(
      message_of<UserError>([&] { PeftFolder(folder.path(), layers); }),
      HasSubstr("adapter_config.json"));
  put(folder / "adapter_config.json",
      R"({"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]})");
  EXPECT_THAT(
      message_of<UserError>([&] { PeftFolder(folder.path(), layers); }),
      HasSubstr("adapter_model.safetensors"));
  fs::copy_file(
      golden_adapter("llama-tiny-qv") / "adapter_model.safetensors",
      folder / "adapter_model.safetensors");
  const std::string message = message_of<UserError>([&] { PeftFolder(folder.path(), layers); });
  // A and B of four layers are of rank 4, and nobody wants v_proj's
  EXPECT_THAT(message, HasSubstr("16 faults"));
  EXPECT_THAT(message, HasSubstr("lora_A.weight is [4, 64]"));
  EXPECT_THAT(message, HasSubstr("unexpected"));
}

} // namespace
} // namespace palimpsest
