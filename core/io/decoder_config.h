#pragma once

// A decoder's architecture, from and to Hugging Face's config.json.
//
//   DecoderConfig config = parse_decoder_config(read_file(path), path);
//   std::vector<TensorDeclaration> weights = decoder_tensors(config);   // their names, shapes and dtype
//   std::string text = write_decoder_config(config);                    // loads in transformers 4 and 5
//
// Supported: the LLaMA family (model_type "llama", LlamaForCausalLM). Whatever changes numbers and
// is not supported is refused by name. Keys that change no number here are ignored: token ids,
// use_cache, transformers_version, generation settings and whatever is not named in DecoderConfig.

#include <palimpsest/core/io/rope.h>
#include <palimpsest/core/io/safetensors.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// GeluTanh is also called gelu_new, Silu also swish (one formula each).
enum class HiddenAct { kSilu, kGelu, kGeluTanh, kRelu };

/// "silu", "gelu", "gelu_pytorch_tanh", "relu".
std::string_view name_of(HiddenAct act);
/// Empty for a name that is none of them, nor another one of theirs.
std::optional<HiddenAct> parse_hidden_act(std::string_view name);

struct DecoderConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0; // divides num_attention_heads
  int64_t head_dim = 0; // even; hidden_size / num_attention_heads unless given
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  double attention_dropout = 0.0;
  HiddenAct hidden_act = HiddenAct::kSilu;
  double initializer_range = 0.02;
  StoredDtype dtype = StoredDtype::F32; // of the stored weights: F32, F16 or BF16
  RopeConfig rope;

  bool operator==(const DecoderConfig&) const = default;
};

/// Reads config.json; `file` stands for it in messages. Any wrong, missing, contradictory or
/// unsupported key is a UserError naming file and key.
DecoderConfig parse_decoder_config(std::string_view json, const std::string& file);

/// The rules between the keys, for a config made from explicit numbers: num_key_value_heads = 0 and
/// head_dim = 0 take their defaults. `origin` names the source in messages ("model" or a file).
DecoderConfig complete_decoder_config(DecoderConfig config, const std::string& origin);

/// config.json for a model made from scratch, in the layout that transformers 4 and 5 both read
/// (rope_theta and rope_scaling). A model that came from a folder keeps its own config.json byte
/// for byte instead.
std::string write_decoder_config(const DecoderConfig& config);

/// Names (Hugging Face's), shapes and dtype of the weights, in the order of the model. A tied model
/// has no lm_head.weight. Linear weights are [out, in].
std::vector<TensorDeclaration> decoder_tensors(const DecoderConfig& config);

/// Parameters of one decoder, tied ones once.
int64_t parameter_count(const DecoderConfig& config);

} // namespace palimpsest
