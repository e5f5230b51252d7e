#pragma once

// A decoder's architecture, from and to Hugging Face's config.json.
//
//   DecoderConfig config = parse_decoder_config(read_file(path), path);
//   std::vector<TensorDeclaration> weights = decoder_tensors(config);   // decoder_tensors.h
//   std::string text = write_decoder_config(config);                    // loads in transformers 4 and 5
//
// Supported are the families of decoder_family.h. Whatever changes numbers and is not supported is
// refused by name. Keys that change no number here are ignored: token ids, use_cache,
// transformers_version, generation settings and whatever is not named in DecoderConfig.

#include <palimpsest/core/io/decoder_family.h>
#include <palimpsest/core/io/rope.h>
#include <palimpsest/core/io/safetensors.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// "silu", "gelu", "gelu_pytorch_tanh", "relu".
std::string_view name_of(HiddenAct act);
/// Empty for a name that is none of them, nor another one of theirs.
std::optional<HiddenAct> parse_hidden_act(std::string_view name);

struct DecoderConfig {
  const DecoderFamily* family = decoder_families().data(); // llama
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0; // divides num_attention_heads
  int64_t head_dim =
      0; // even for a rotary embedding; hidden_size / num_attention_heads unless given
  int64_t max_position_embeddings = 2048;
  double norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  double attention_dropout = 0.0;
  double residual_dropout = 0.0; // of what attention and MLP add
  double embedding_dropout = 0.0;
  HiddenAct hidden_act = HiddenAct::kSilu;
  double initializer_range = 0.02;
  StoredDtype dtype = StoredDtype::F32; // of the stored weights: F32, F16 or BF16
  RopeConfig rope; // of a family that is rotary
  /// By layer: how many keys a query sees, the last ones, its own among them; 0: all. Empty: all
  /// layers see all.
  std::vector<int64_t> windows;

  int64_t window(int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
  bool operator==(const DecoderConfig&) const = default;
};

/// Reads config.json; `file` stands for it in messages. Any wrong, missing, contradictory or
/// unsupported key is a UserError naming file and key.
DecoderConfig parse_decoder_config(std::string_view json, const std::string& file);

/// The rules between the keys, for a config made from explicit numbers: num_key_value_heads = 0 and
/// head_dim = 0 take their defaults. `origin` names the source in messages ("model" or a file).
DecoderConfig complete_decoder_config(DecoderConfig config, const std::string& origin);

/// The windows of a model whose layers from `first` on see only the last `window` keys; 0: none do.
std::vector<int64_t> layer_windows(int64_t layers, int64_t window, int64_t first);

/// config.json for a model made from scratch, in the layout that transformers 4 and 5 both read
/// (rope_theta and rope_scaling). A model that came from a folder keeps its own config.json byte
/// for byte instead.
std::string write_decoder_config(const DecoderConfig& config);

} // namespace palimpsest
