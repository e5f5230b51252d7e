#pragma once

// The decoder families: what each one does differently, as a table. The reader of config.json, the
// names of the weights and the blocks follow from an entry, so a new family is a new entry.
//
//   const DecoderFamily& family = decoder_families().front();      // llama
//   for (const DecoderFamily& known : decoder_families()) { use(known.name); }
//
// Source: the models' classes in transformers 4.57 and 5.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace palimpsest {

/// GeluTanh is also called gelu_new, Silu also swish (one formula each).
enum class HiddenAct { kSilu, kGelu, kGeluTanh, kRelu };

enum class NormKind {
  kRms, ///< x / rms(x) * weight
  kRmsOnePlus, ///< x / rms(x) * (1 + weight)
  kLayer, ///< (x - mean) / deviation * weight + bias
};

/// Whether a family's layers have something.
enum class Presence { kNever, kByConfig, kAlways };

/// Which layers may look at a sliding window of keys.
enum class WindowRule {
  kNone,
  kEveryLayer, ///< all of them, where sliding_window is given
  kByLayer, ///< by layer_types, or those from max_window_layers on, where use_sliding_window is set
};

/// The parts of the weights' names: "{base}{layers}.{N}.{attention}.{part}.weight".
struct DecoderNames {
  std::string_view base; ///< with its dot; files saved from the bare model lack it
  std::string_view embedding;
  std::string_view positions; ///< learned ones; empty without
  std::string_view layers;
  std::string_view attention_norm;
  std::string_view attention;
  std::span<const std::string_view> qkv; ///< neighbours, one product
  std::string_view output;
  std::string_view mlp_norm;
  std::string_view mlp;
  std::span<const std::string_view> inner; ///< gate and up, or the one inner layer
  std::string_view down;
  std::string_view final_norm;
};

/// A key of config.json as most families spell it, and as this one does.
using KeySpelling = std::pair<std::string_view, std::string_view>;

struct DecoderFamily {
  std::string_view name; ///< model_type
  std::string_view architecture;
  const DecoderNames* names = nullptr;
  std::span<const KeySpelling> spellings = {};

  NormKind norm = NormKind::kRms;
  bool head_norms = false; ///< q and k of each head are normed before the rotation
  bool rotary = true; ///< otherwise each position has a learned vector, added to the embedding
  bool gated = true; ///< act(gate(x)) * up(x); otherwise act(inner(x))
  bool scales_embedding = false; ///< times the root of the hidden size
  bool weights_in_out = false; ///< linear weights are stored [in, out]
  bool scales_output_init = false; ///< output and down begin smaller by sqrt(2 * layers)
  Presence qkv_bias = Presence::kNever; ///< by config: attention_bias
  Presence output_bias = Presence::kNever; ///< by config: attention_bias
  Presence mlp_bias = Presence::kNever; ///< by config: mlp_bias
  WindowRule windows = WindowRule::kNone;

  // What holds for a key that config.json lacks.
  int64_t max_position_embeddings = 2048;
  int64_t head_dim = 0; ///< 0: hidden_size / num_attention_heads
  int64_t sliding_window = 0; ///< 0: none
  double norm_eps = 1e-6;
  double dropout =
      0; ///< of attention; residuals and embedding have it too where positions are learned
  bool tie_word_embeddings = false;
  HiddenAct hidden_act = HiddenAct::kSilu;

  /// A key of config.json in this family's spelling.
  std::string spelled(std::string_view key) const;
};

/// LLaMA first.
std::span<const DecoderFamily> decoder_families();

/// Null where there is none of this name.
const DecoderFamily* find_decoder_family(std::string_view name);

} // namespace palimpsest
