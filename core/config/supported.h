#pragma once

// What the schema can say and this version cannot do: refused by name, never ignored.

#include <palimpsest/core/config/origin.h>
#include <palimpsest/core/config/run_config.pb.h>

#include <string>
#include <vector>

namespace palimpsest {

struct Limit {
  const char* key;
  std::vector<std::string> works; // values that exist; none: only leaving the key out does
  const char* feature; // what is missing
};

/// Everything that does not exist yet. A feature is enabled by deleting its line, or by adding its
/// value.
const std::vector<Limit>& limits();

/// Adds a sentence for every key that asks for a feature which does not exist yet.
void check_supported(const RunConfig& config, const Origins& origins, Problems& problems);

} // namespace palimpsest
