#pragma once

// What must hold between keys: nothing required is missing and no two keys contradict each other.
// Rules are tables at the top of validate.cc.

#include <palimpsest/core/config/origin.h>
#include <palimpsest/core/config/run_config.pb.h>

#include <string>
#include <string_view>

namespace palimpsest {

/// Adds a sentence for every missing key and every contradiction, naming both keys and where they
/// were given. Expects defaults, presets and derived values to be in place.
void validate(const RunConfig& config, const Origins& origins, Problems& problems);

/// Whether a key means anything in this config: momentum does for sgd, rope_theta for a llama,
/// epochs where no steps are given.
bool in_effect(const RunConfig& config, const Origins& origins, std::string_view key);

/// "training.epochs (run.yaml:3)", or the bare key where nobody gave it.
std::string name_key(std::string_view key, const Origins& origins);

} // namespace palimpsest
