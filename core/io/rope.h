#pragma once

// Rotary position embedding: the inverse frequencies of every scaling type of the LLaMA family.
//
//   RopeConfig rope{.type = RopeType::kLinear, .theta = 1e4, .factor = 4.0};
//   RopeTable table = rope_table(rope, head_dim, max_position_embeddings, sequence_length);
//
// The angle of feature pair i at position p is p * table.inverse_frequencies[i]; its cos and sin
// are multiplied by table.attention_scaling.
//
// Sources: RoFormer (arXiv 2104.09864); dynamic NTK and YaRN (arXiv 2309.00071); llama3 as
// published with the model; all as computed by transformers' modeling_rope_utils.py, but in double
// precision and rounded once.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

enum class RopeType { kDefault, kLinear, kDynamic, kYarn, kLlama3 };

/// "default", "linear", "dynamic", "yarn", "llama3".
std::string_view name_of(RopeType type);
std::optional<RopeType> parse_rope_type(std::string_view name);

/// The rotary settings of a model; what a type does not use is left at its default.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0; // all types but default
  // yarn and llama3: positions seen in pre-training; max_position_embeddings where absent (yarn
  // only)
  std::optional<int64_t> original_max_position_embeddings = std::nullopt;
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // yarn
  std::optional<double> attention_factor = std::nullopt;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> mscale = std::nullopt;
  std::optional<double> mscale_all_dim = std::nullopt;
  bool truncate = true;

  bool operator==(const RopeConfig&) const = default;
};

struct RopeTable {
  std::vector<float> inverse_frequencies; // head_dim / 2
  double attention_scaling = 1.0; // multiplies cos and sin
};

/// `head_dim` is even (above 2 for dynamic). Only the dynamic type depends on `sequence_length`
/// (highest position + 1), and only above max_position_embeddings.
RopeTable rope_table(
    const RopeConfig& rope,
    int64_t head_dim,
    int64_t max_position_embeddings,
    int64_t sequence_length);

} // namespace palimpsest
