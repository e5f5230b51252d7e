#pragma once

// A model folder from a checkpoint, without building the model.
//
//   export_checkpoint("runs/a/step-00001000", "my-model");

#include <cstdint>
#include <filesystem>
#include <string>

namespace palimpsest {

struct ExportedCheckpoint {
  std::filesystem::path folder;
  std::string run_id;
  int64_t step = 0;
};

/// Writes `out`, which must be empty or missing, from a checkpoint, or from the newest one of an
/// output folder: what Model::write gives at that step, byte for byte. Tensors are read one at a
/// time. UserError where the checkpoint is damaged or lacks a tensor of its model, EnvironmentError
/// where a trained weight is not finite in the dtype of the model folder.
ExportedCheckpoint export_checkpoint(
    const std::filesystem::path& path,
    const std::filesystem::path& out);

} // namespace palimpsest
