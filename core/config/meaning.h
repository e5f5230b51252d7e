#pragma once

// Which keys change what a run computes, and which only how: what may differ when a run goes on
// from a checkpoint.
//
//   for (const std::string& line : changes_of_meaning(saved, resolve_batch(config, world))) {
//     std::cerr << line << "\n";                        // "optimizer.learning_rate: 0.001 -> 0.002"
//   }
//
// The schema says it of each key (`changes_numbers` in key_options.proto); a key that says nothing
// counts as one that does.

#include <palimpsest/core/config/run_config.pb.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest {

/// The config with the batch of a run on `world` ranks filled in, so that configs of different
/// worlds compare by their global batch.
RunConfig resolve_batch(RunConfig config, int64_t world);

/// One line for every key that changes the numbers and differs; keys that mean nothing in either
/// config are left out, and so is the length of a run whose learning rate does not depend on it.
std::vector<std::string> changes_of_meaning(const RunConfig& before, const RunConfig& now);

/// Whether the key, given by its dotted name from the top ("training.seed"), changes the numbers.
bool changes_numbers(std::string_view key);

} // namespace palimpsest
