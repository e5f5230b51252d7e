#pragma once

// Which linear layers of a decoder have low-rank adapters, and which ones.
//
//   const AdapterSet set = choose_adapters({.rank = 8, .alpha = 16, .targets = {"q_proj", "v_proj"}}, linear_layers(config));
//   set.layers.at("model.layers.0.self_attn.q_proj").rank;     // 8
//   set.scale({.rank = 8, .alpha = 16});                        // 2
//
// An adapter (LoRA, Hu et al. 2021) adds scale * B A to a weight [out,in]: A [rank,in], B [out,rank],
// scale alpha / rank, or alpha / sqrt(rank) (rsLoRA, Kalajdzievski 2023). Its parameters are named as
// PEFT names them, after their layer: "model.layers.0.self_attn.q_proj.lora_A.weight".

#include <palimpsest/core/io/decoder_tensors.h>
#include <palimpsest/core/io/safetensors.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

struct AdapterShape {
  int64_t rank = 0;
  double alpha = 0;
  bool operator==(const AdapterShape&) const = default;
};

struct AdapterSet {
  std::map<std::string, AdapterShape, std::less<>> layers; // by their names
  AdapterShape usual; // of those that no pattern names
  double dropout = 0; // of what goes into an adapter
  bool rslora = false;

  double scale(const AdapterShape& shape) const;
  bool operator==(const AdapterSet&) const = default;
};

/// A and B of a layer's adapter, fp32.
struct AdapterTensors {
  TensorDeclaration a;
  TensorDeclaration b;
};
AdapterTensors adapter_tensors(const LinearDeclaration& layer, const AdapterShape& shape);
/// Of all layers that have one, A before B.
std::vector<TensorDeclaration> adapter_tensors(
    const AdapterSet& set,
    std::span<const LinearDeclaration> layers);

/// Whether a parameter of this name is an adapter's.
bool is_adapter(std::string_view parameter);

/// Another rank or alpha for the layers in whose names the expression is found.
struct AdapterPattern {
  std::string match;
  std::optional<int64_t> rank;
  std::optional<double> alpha;
};

/// What a user wants.
struct AdapterChoice {
  int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;
  bool rslora = false;
  std::vector<std::string> targets; // last parts of names, or all-linear alone
  std::vector<AdapterPattern> patterns; // the first that is found counts
};

/// UserError for a target or a pattern without a layer, naming the layers that there are.
AdapterSet choose_adapters(const AdapterChoice& choice, std::span<const LinearDeclaration> layers);

/// Whether `layer` is `name` or ends in it, from a dot on.
bool ends_in_name(std::string_view layer, std::string_view name);
/// The different last parts of the layers' names, sorted, in a row: "down_proj, q_proj".
std::string last_parts(std::span<const LinearDeclaration> layers);

} // namespace palimpsest
