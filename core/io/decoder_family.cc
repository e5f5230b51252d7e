#include <palimpsest/core/io/decoder_family.h>

#include <algorithm>
#include <array>

namespace palimpsest {
namespace {

constexpr std::array<std::string_view, 3> kLlamaQkv = {"q_proj", "k_proj", "v_proj"};
constexpr std::array<std::string_view, 2> kLlamaInner = {"gate_proj", "up_proj"};
constexpr DecoderNames kLlamaNames{
    .base = "model.",
    .embedding = "embed_tokens",
    .positions = "",
    .layers = "layers",
    .attention_norm = "input_layernorm",
    .attention = "self_attn",
    .qkv = kLlamaQkv,
    .output = "o_proj",
    .mlp_norm = "post_attention_layernorm",
    .mlp = "mlp",
    .inner = kLlamaInner,
    .down = "down_proj",
    .final_norm = "norm"};

constexpr std::array<std::string_view, 1> kGpt2Qkv = {"c_attn"};
constexpr std::array<std::string_view, 1> kGpt2Inner = {"c_fc"};
constexpr DecoderNames kGpt2Names{
    .base = "transformer.",
    .embedding = "wte",
    .positions = "wpe",
    .layers = "h",
    .attention_norm = "ln_1",
    .attention = "attn",
    .qkv = kGpt2Qkv,
    .output = "c_proj",
    .mlp_norm = "ln_2",
    .mlp = "mlp",
    .inner = kGpt2Inner,
    .down = "c_proj",
    .final_norm = "ln_f"};
constexpr std::array<KeySpelling, 8> kGpt2Keys = {{
    {"hidden_size", "n_embd"},
    {"intermediate_size", "n_inner"},
    {"num_hidden_layers", "n_layer"},
    {"num_attention_heads", "n_head"},
    {"max_position_embeddings", "n_positions"},
    {"rms_norm_eps", "layer_norm_epsilon"},
    {"hidden_act", "activation_function"},
    {"attention_dropout", "attn_pdrop"},
}};

constexpr std::array<DecoderFamily, 6> kFamilies = {{
    {.name = "llama",
     .architecture = "LlamaForCausalLM",
     .names = &kLlamaNames,
     .qkv_bias = Presence::kByConfig,
     .output_bias = Presence::kByConfig,
     .mlp_bias = Presence::kByConfig},
    {.name = "mistral",
     .architecture = "MistralForCausalLM",
     .names = &kLlamaNames,
     .windows = WindowRule::kEveryLayer,
     .max_position_embeddings = 131'072,
     .sliding_window = 4096},
    {.name = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .names = &kLlamaNames,
     .qkv_bias = Presence::kAlways,
     .windows = WindowRule::kByLayer,
     .max_position_embeddings = 32'768,
     .sliding_window = 4096},
    {.name = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .names = &kLlamaNames,
     .head_norms = true,
     .qkv_bias = Presence::kByConfig,
     .output_bias = Presence::kByConfig,
     .windows = WindowRule::kByLayer,
     .max_position_embeddings = 32'768,
     .head_dim = 128,
     .sliding_window = 4096},
    {.name = "gemma",
     .architecture = "GemmaForCausalLM",
     .names = &kLlamaNames,
     .norm = NormKind::kRmsOnePlus,
     .scales_embedding = true,
     .qkv_bias = Presence::kByConfig,
     .output_bias = Presence::kByConfig,
     .max_position_embeddings = 8192,
     .head_dim = 256,
     .tie_word_embeddings = true,
     .hidden_act = HiddenAct::kGeluTanh},
    {.name = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .names = &kGpt2Names,
     .spellings = kGpt2Keys,
     .norm = NormKind::kLayer,
     .rotary = false,
     .gated = false,
     .weights_in_out = true,
     .scales_output_init = true,
     .qkv_bias = Presence::kAlways,
     .output_bias = Presence::kAlways,
     .mlp_bias = Presence::kAlways,
     .max_position_embeddings = 1024,
     .norm_eps = 1e-5,
     .dropout = 0.1,
     .tie_word_embeddings = true,
     .hidden_act = HiddenAct::kGeluTanh},
}};

} // namespace

std::string DecoderFamily::spelled(std::string_view key) const {
  const auto found = std::ranges::find(spellings, key, &KeySpelling::first);
  return std::string(found == spellings.end() ? key : found->second);
}

std::span<const DecoderFamily> decoder_families() {
  return kFamilies;
}

const DecoderFamily* find_decoder_family(std::string_view name) {
  const auto found = std::ranges::find(kFamilies, name, &DecoderFamily::name);
  return found == kFamilies.end() ? nullptr : &*found;
}

} // namespace palimpsest
