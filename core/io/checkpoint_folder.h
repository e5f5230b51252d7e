#pragma once

// The checkpoints of an output folder, and what a run that is given this folder does.
//
//   std::vector<NumberedCheckpoint> all = list_checkpoints("runs/a");     // oldest first
//   RunStart start = decide_start({.output = "runs/a", .changes = changes});
//   if (start.checkpoint) { CheckpointReader reader(*start.checkpoint); … }
//   FileDescriptor lock = begin_run("runs/a", start);                     // rank 0, before the first step
//
// A checkpoint is a folder named as step_folder(N) names it; anything else beside it is neither
// chosen nor deleted. Order is by number.

#include <palimpsest/core/base/files.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// "step-00001000"; more digits where the number has more.
std::string step_folder(int64_t step);
/// The number of a name that step_folder gives; empty for any other.
std::optional<int64_t> parse_step_folder(std::string_view name);

/// Where the ranks write a checkpoint until it is complete: a hidden name beside its own.
std::filesystem::path temporary_folder(const std::filesystem::path& output, int64_t step);

struct NumberedCheckpoint {
  int64_t step = 0;
  std::filesystem::path folder;
  bool operator==(const NumberedCheckpoint&) const = default;
};

/// Oldest first, by number; not opened. Empty where the folder is missing.
std::vector<NumberedCheckpoint> list_checkpoints(const std::filesystem::path& output);

/// What to do about a newest checkpoint that is damaged: stop, or go on with an older one and say
/// so.
enum class Damaged { kRefuse, kSkip };

/// `path` itself where it is a checkpoint, else the newest of an output folder, which must be whole.
/// UserError for anything else, saying what is there and what to do.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);
/// The same for a path that must be a checkpoint or hold some.
void require_checkpoints(const std::filesystem::path& path);

/// The newest that opens (CheckpointReader). With kSkip each one passed over gives a note.
std::optional<NumberedCheckpoint> newest_checkpoint(
    const std::filesystem::path& output,
    Damaged damaged,
    std::vector<std::string>& notes);

/// The one before this checkpoint of the folder, by number; not opened.
std::optional<std::filesystem::path> checkpoint_before(
    const std::filesystem::path& output,
    const std::filesystem::path& checkpoint);

/// Which run the folder holds, as its run.json says; empty where there is none.
std::optional<std::string> read_run_id(const std::filesystem::path& output);

/// Deletes what is older than the `keep` newest that open, but nothing that is being read. What it
/// deletes disappears from the list in one step. Returns what was deleted; one that cannot be
/// deleted gives a note and does not keep the others.
std::vector<std::filesystem::path> delete_old_checkpoints(
    const std::filesystem::path& output,
    int64_t keep,
    std::vector<std::string>& notes);

/// Removes what saves and deletions that were killed have left, and replaced checkpoints. Returns
/// what could not be removed, with the reason.
std::vector<std::string> remove_leftovers(const std::filesystem::path& output);

/// Puts folder `from` in the place of the checkpoint `to`, for file systems that cannot exchange the
/// two in one step. The old one is not deleted but bears a hidden name, which remove_leftovers
/// knows; it comes back where the new one cannot be moved.
void replace_by_renames(const std::filesystem::path& from, const std::filesystem::path& to);

struct StartRequest {
  std::filesystem::path output;
  std::string resume = {}; // empty, "auto", or a checkpoint's folder
  bool restart = false;
  bool allow_change = false;
  /// What differs in meaning between the config of a checkpoint and this run's: "key: old -> new".
  std::function<std::vector<std::string>(const std::string& config_text)> changes;
};

struct RunStart {
  std::string run_id; // the folder's run, or a new one
  bool is_new = true; // a new run: begin_run writes its id
  std::optional<std::filesystem::path> checkpoint; // to read before the first step
  std::vector<std::string> notes; // what is worth telling
  std::optional<int64_t> newest_step = {}; // of the folder's checkpoints, whole or not
};

/// Empty folder, or what a run has left that ended before its first step: start. A run with
/// checkpoints: resume from the newest, which must be whole unless `resume` is auto. A run without
/// any: refuse unless `restart`. A checkpoint named in `resume` that is of another run than the
/// folder's, or lies elsewhere, or is older than one of the folder's: refuse, naming both. A folder
/// that another run writes to: refuse, naming it. Changes of meaning: refuse with the list unless
/// `allow_change`.
/// Refusals are UserErrors, a folder that cannot be written an EnvironmentError; nothing is written.
RunStart decide_start(const StartRequest& request);

/// Writes a new run's id to run.json. What an older run left there (`restart`) is first moved to
/// previous-1 (or the next free number), checkpoints and all, so that nothing of it is taken for
/// this run's. EnvironmentError where the folder cannot be written.
///
/// Returns the lock that makes the folder this process's: hold it as long as the run may write. It
/// ends with the process however that ends. UserError naming the holder where another has it, on
/// this machine or one that shares the folder, or has saved since `start` was decided; then nothing
/// is changed. A file system without locks is told in start.notes.
[[nodiscard]] FileDescriptor begin_run(const std::filesystem::path& output, RunStart& start);

} // namespace palimpsest
