#pragma once

// Model shapes by name, for `model: {preset: tiny}`.

#include <vector>

namespace palimpsest {

struct Preset {
  const char* name;
  const char* help;
  const char* model; // the keys of the model section, as YAML
};

/// All presets; run_config.proto allows the same names.
const std::vector<Preset>& presets();

} // namespace palimpsest
