#pragma once

// What the tests of the config share: loading from text, and the message of a refusal.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/loader.h>

#include <string>
#include <vector>

namespace palimpsest {

/// The shortest valid config, with room for more.
inline std::string minimal(const std::string& more = "") {
  return "model: {preset: tiny}\n"
         "data: {files: [corpus.txt]}\n"
         "optimizer: {learning_rate: 1e-3}\n" +
      more;
}

/// The message of the UserError that the text is refused with; empty where it loads.
inline std::string refusal(
    const std::string& text,
    const std::vector<std::string>& overrides = {},
    const std::string& name = "run.yaml") {
  try {
    load_config_text(text, name, overrides);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

} // namespace palimpsest
