#pragma once

// A model folder from a checkpoint, without building the model.
//
//   export_checkpoint("runs/a/step-00001000", "my-model", Adapters::kApart);

#include <cstdint>
#include <filesystem>
#include <string>

namespace palimpsest {

/// What becomes of the adapters of a run that trained some.
enum class Adapters {
  kApart, ///< they are written, as a PEFT folder
  kMerged, ///< the whole model is written, with its weights as they make them
};

struct ExportedCheckpoint {
  std::filesystem::path folder;
  bool adapters = false; // these alone were written
  std::string run_id;
  int64_t step = 0;
  /// The run's model.path, where it could not be found and frozen weights are therefore written as
  /// they were held, which is less than the model has of them; else empty.
  std::string missing_model = {};
};

/// Writes `out`, which must be empty or missing, from a checkpoint, or from the newest one of an
/// output folder: what Model::write gives at that step, byte for byte, unless adapters are merged or
/// the run's model is missing. Tensors are read one at a time. UserError where the checkpoint is
/// damaged, lacks a tensor of its model, or has no adapters to merge; EnvironmentError where a trained
/// weight is not finite in the dtype of the model folder.
ExportedCheckpoint export_checkpoint(
    const std::filesystem::path& path,
    const std::filesystem::path& out,
    Adapters adapters = Adapters::kApart);

} // namespace palimpsest
