#pragma once

// The reference of all keys, written from the schema: docs/config.md is this text.

#include <string>

namespace palimpsest {

/// Markdown: a table of keys for each section, the presets, and what this version refuses.
std::string config_reference();

} // namespace palimpsest
