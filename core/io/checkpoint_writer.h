#pragma once

// Saves a run: every rank writes its own pieces, the folder appears whole or not at all.
//
//   Checkpoint checkpoint{.info = info, .config_text = config_text(config, world), .model = layout};
//   checkpoint.pieces.push_back({{{"model.norm.weight", StoredDtype::F32, {64}}, "master"}, begin, count});
//   SavedCheckpoint saved = save_checkpoint("runs/a", checkpoint, source, {rank, world, agree}, /*keep_last=*/3);
//
// Files are written to a hidden folder of the output, synced, and renamed in one step, so that a
// save that is killed at any moment leaves all older checkpoints as they were; the next save removes
// what it left. Nothing is copied: a piece's bytes go from where they live to the file.

#include <palimpsest/core/io/checkpoint_manifest.h>
#include <palimpsest/core/io/hf_folder.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace palimpsest {

/// Elements [begin, begin + count) of a state: what one rank writes of it. Together the ranks'
/// pieces must cover each state exactly once, so of copies that several ranks hold only one is
/// declared.
struct StatePiece {
  StateDeclaration whole;
  int64_t begin = 0;
  int64_t count = 0;
};

/// Takes a piece's bytes, row-major and little-endian, in as many parts as wished.
using PieceSink = std::function<void(std::span<const std::byte>)>;
/// Gives a piece's bytes to the sink. Called once for each piece, in the order of the file (wider
/// types first, then by name).
using PieceSource = std::function<void(const StatePiece& piece, const PieceSink& sink)>;

/// What a rank saves. `pieces` differ from rank to rank, the rest is equal on all of them.
struct Checkpoint {
  CheckpointInfo info;
  std::string config_text; // YAML, resolved
  HfFolderLayout model; // what an export of this checkpoint writes
  std::vector<StatePiece> pieces;
};

/// The ranks that save together. `agree` returns on all of them once all have called it: whether
/// all gave true.
struct SavingRanks {
  int rank = 0;
  int world = 1;
  std::function<bool(bool)> agree = [](bool ok) { return ok; };
};

struct SavedCheckpoint {
  std::filesystem::path folder; // empty where nothing was saved
  std::string not_finite; // the parameter that prevented it, on rank 0
  int64_t bytes = 0; // of this rank's states
  std::vector<std::filesystem::path> deleted; // by keep_last, on rank 0
  std::vector<std::string> warnings; // what could not be deleted and why, on rank 0
};

/// Collective. Writes `output`/step-00001000, which all ranks must see under this path; one of that
/// step is replaced. Then deletes the oldest checkpoints beyond `keep_last` (at least 1), but none
/// that is being read and nothing with another kind of name; what cannot be deleted is a warning,
/// since the save has succeeded.
///
/// A trainable parameter or master with a NaN or an infinity prevents the save: nothing is written
/// and nothing deleted, so a run that has diverged cannot push out its good checkpoints.
///
/// EnvironmentError on every rank where one of them cannot write (the disk is full, the folder
/// cannot be written): older checkpoints remain as they were. InternalError for pieces that do not
/// cover the states.
SavedCheckpoint save_checkpoint(
    const std::filesystem::path& output,
    const Checkpoint& checkpoint,
    const PieceSource& source,
    const SavingRanks& ranks,
    std::optional<int64_t> keep_last = std::nullopt);

} // namespace palimpsest
