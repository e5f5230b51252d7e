#pragma once

// A config as `palimpsest config show` prints it: YAML that loads back into the same config, every
// value with its origin.
//
//   optimizer:
//     name: adamw               # default
//     learning_rate: 2e-05      # run.yaml:4
//     # max_grad_norm: no clipping

#include <palimpsest/core/config/origin.h>
#include <palimpsest/core/config/run_config.pb.h>

#include <cstdint>
#include <string>

namespace palimpsest {

/// The keys that mean something in this config, with the batch of a run on `world` ranks filled in.
/// Throws UserError where the batch does not divide.
std::string show_config(const RunConfig& config, const Origins& origins, int64_t world);

/// The same without comments: what a checkpoint keeps of a run's settings.
std::string config_text(const RunConfig& config, int64_t world);

} // namespace palimpsest
