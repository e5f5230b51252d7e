#pragma once

// What the model's name on a command line that generates stands for.
//
//   const GenerationSource source = find_generation_source("runs/a", {"precision.compute=bf16"});
//
// In this order: a config file, which stands for its run's output folder; a checkpoint; a Hugging
// Face folder; a PEFT adapter's folder, whose base model is found by the name that it has; a run's
// output folder: its model/ or adapter/, or its newest checkpoint where that is newer; a hub id in
// the local cache.

#include <palimpsest/core/config/run_config.pb.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

struct GenerationSource {
  RunConfig
      config; // of it the model, its adapters, the precision, the budget and the template count
  std::optional<std::filesystem::path> checkpoint; // the weights'; else they are the model's own
  std::filesystem::path texts; // the folder of tokenizer, chat template and generation config
  std::string name; // "checkpoint runs/a/step-00000010", for people
};

/// `overrides`: key=value of keys that matter here. UserError for any other key, and where `model`
/// is none of the above, saying what it is.
GenerationSource find_generation_source(
    const std::string& model,
    const std::vector<std::string>& overrides);

} // namespace palimpsest
