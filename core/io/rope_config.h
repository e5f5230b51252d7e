#pragma once

// The rotary embedding's part of a decoder's config.json.
//
//   RopeConfig rope = parse_rope(keys, "Llama/config.json");
//   check_rope(rope, head_dim, "Llama/config.json");
//   nlohmann::json section = encode_rope(rope);      // rope_scaling; rope_theta stands beside it

#include <palimpsest/core/io/config_reader.h>
#include <palimpsest/core/io/rope.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace palimpsest {

/// rope_theta and rope_scaling (transformers 4) or rope_parameters (5), or both where they agree.
/// UserError naming `file` and key for a type, a setting or a number that would be misread.
RopeConfig parse_rope(const ConfigReader& keys, const std::string& file);

/// The rules between the settings: UserError naming `origin`.
void check_rope(const RopeConfig& rope, int64_t head_dim, const std::string& origin);

/// The section as transformers 4 spells it; null for the default type.
nlohmann::json encode_rope(const RopeConfig& rope);

} // namespace palimpsest
