#pragma once

// JSON as the files of a model folder need it: duplicate keys and deep nesting are errors, never
// silently resolved.
//
//   nlohmann::json index = parse_json(text, "model.safetensors.index.json");

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace palimpsest {

/// Deeper nesting than this is refused: no file of a model needs it.
inline constexpr int kJsonMaxDepth = 64;

/// UserError naming `file` and the byte where the text is no JSON, naming the key where one occurs
/// twice in an object.
nlohmann::json parse_json(std::string_view text, const std::string& file);

/// A piece of foreign text as it may stand in a message: quoted, control characters escaped, cut
/// after 100 characters.
std::string quote(std::string_view text);

} // namespace palimpsest
