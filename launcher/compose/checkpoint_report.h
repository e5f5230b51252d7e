#pragma once

// What a checkpoint holds, as text for the terminal.
//
//   inspect("runs/a", {.verify = true}, std::cout);

#include <filesystem>
#include <ostream>

namespace palimpsest {

struct InspectOptions {
  bool verify = false; // read everything and compare all checksums
  bool tensors = false; // list every state of every parameter
};

/// A checkpoint: run, step, layout, data position, bytes by state and type, files. An output
/// folder: one line for each of its checkpoints. UserError for a folder that is neither, for a
/// damaged checkpoint, and with `verify` for an output folder with a damaged one, after all are
/// listed.
void inspect(const std::filesystem::path& folder, const InspectOptions& options, std::ostream& out);

} // namespace palimpsest
