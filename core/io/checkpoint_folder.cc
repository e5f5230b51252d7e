#include <palimpsest/core/io/checkpoint_folder.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/base/host.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/json.h>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <random>
#include <system_error>

namespace palimpsest {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSaving = ".saving";
constexpr std::string_view kDeleting = ".deleting";
constexpr std::string_view kRunName = "run.json";
constexpr std::string_view kLockName = ".run.lock";

/// What a run leaves in its output folder, beside checkpoints.
constexpr std::array<std::string_view, 6> kRunFiles =
    {kRunName, "metrics.jsonl", "tensorboard", "model", "adapter", "best"};

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// The names in a folder; none where it is missing.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator at(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw EnvironmentError("cannot list {}: {}", folder.string(), error.message());
  }
  return names;
}

void remove_tree(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) {
    throw EnvironmentError("cannot delete {}: {}", folder.string(), error.message());
  }
}

void move(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    throw EnvironmentError("cannot move {} to {}: {}", from.string(), to.string(), error.message());
  }
}

/// Where a checkpoint that is to be deleted waits.
fs::path doomed_folder(const fs::path& checkpoint) {
  return checkpoint.parent_path() / fmt::format(".{}{}", checkpoint.filename().string(), kDeleting);
}

/// Whether a reader holds the checkpoint's manifest. The lock is kept until the descriptor goes.
bool lock_for_deletion(const FileDescriptor& manifest) {
  return manifest.get() < 0 || ::flock(manifest.get(), LOCK_EX | LOCK_NB) == 0 ||
      errno != EWOULDBLOCK;
}

bool opens(const fs::path& checkpoint) {
  try {
    const CheckpointReader reader(checkpoint);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string new_run_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// Whether a run has left something there that another could take the place of. One that ended before
/// its first step has not: its metrics are an empty file.
bool holds_run(const fs::path& output) {
  const fs::path metrics = output / "metrics.jsonl";
  std::error_code error;
  const bool empty = fs::is_regular_file(metrics, error) && fs::file_size(metrics, error) == 0;
  return (is_there(metrics) && !empty) || is_there(output / "model") ||
      is_there(output / "adapter") || is_there(output / "best") ||
      !list_checkpoints(output).empty();
}

[[noreturn]] void refuse_in_use(const fs::path& output) {
  const std::string holder = read_file(output / kLockName);
  throw UserError(
      "training.output: another run writes to {} now ({}); wait until it has ended, or give "
      "another folder",
      output.string(),
      holder.empty() ? "unknown process" : holder);
}

/// Refuses a folder that another run holds; takes nothing, and many may look at once.
void require_unlocked(const fs::path& output) {
  const FileDescriptor file(::open((output / kLockName).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() >= 0 && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    refuse_in_use(output);
  }
}

/// The lock is on a file of its own that stays as it is: run.json is replaced and moved.
FileDescriptor lock_output(const fs::path& output, std::vector<std::string>& notes) {
  const fs::path path = output / kLockName;
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    throw EnvironmentError(
        "cannot write {}: {}", path.string(), std::generic_category().message(errno));
  }
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      refuse_in_use(output);
    }
    notes.push_back(fmt::format(
        "{} cannot be locked ({}): see to it that no other run writes there",
        output.string(),
        std::generic_category().message(errno)));
  }
  const std::string holder = fmt::format("process {} on {}", ::getpid(), host_name());
  if (::ftruncate(file.get(), 0) != 0 ||
      ::pwrite(file.get(), holder.data(), holder.size(), 0) != std::ssize(holder)) {
    throw EnvironmentError(
        "cannot write {}: {}", path.string(), std::generic_category().message(errno));
  }
  return file;
}

bool same_folder(const fs::path& left, const fs::path& right) {
  std::error_code error;
  return fs::equivalent(left, right, error);
}

std::optional<int64_t> newest_step(const fs::path& output) {
  const std::vector<NumberedCheckpoint> all = list_checkpoints(output);
  return all.empty() ? std::nullopt : std::optional(all.back().step);
}

/// The checkpoint that `resume` names, allowed in this folder.
CheckpointReader open_named(const StartRequest& request, bool holds) {
  const fs::path named = request.resume;
  CheckpointReader reader(named);
  if (!holds) {
    return reader;
  }
  const fs::path plain = fs::absolute(named.has_filename() ? named : named.parent_path());
  const std::string run_id = read_run_id(request.output).value_or(reader.info().run_id());
  if (!same_folder(plain.parent_path(), request.output) || run_id != reader.info().run_id()) {
    throw UserError(
        "training.output: {} holds run {}, but checkpoint.resume names step {} of run {} in {}; "
        "give another output folder",
        request.output.string(),
        run_id,
        reader.info().step(),
        reader.info().run_id(),
        named.string());
  }
  const std::vector<NumberedCheckpoint> all = list_checkpoints(request.output);
  if (!all.empty() && all.back().step > reader.info().step()) {
    throw UserError(
        "checkpoint.resume: {} is older than {}, which the run would overtake; remove the newer "
        "ones, or give another training.output",
        named.string(),
        all.back().folder.string());
  }
  return reader;
}

/// The newest checkpoint of the run that the folder holds.
CheckpointReader open_newest(const StartRequest& request, std::vector<std::string>& notes) {
  const bool automatic = request.resume == "auto";
  const auto newest =
      newest_checkpoint(request.output, automatic ? Damaged::kSkip : Damaged::kRefuse, notes);
  if (!newest) {
    throw UserError(
        "training.output: {} holds a run without a {}checkpoint; give another folder, or "
        "training.restart=true to begin it anew{}{}",
        request.output.string(),
        notes.empty() ? "" : "whole ",
        notes.empty() ? "" : "\n  ",
        fmt::join(notes, "\n  "));
  }
  CheckpointReader reader(newest->folder);
  const std::string run_id = read_run_id(request.output).value_or(reader.info().run_id());
  if (run_id != reader.info().run_id()) {
    throw UserError(
        "training.output: {} holds run {}, but {} is of run {}; move one of them away",
        request.output.string(),
        run_id,
        newest->folder.string(),
        reader.info().run_id());
  }
  return reader;
}

/// EnvironmentError where the output folder could not be made or written into.
void require_writable(const fs::path& output) {
  std::error_code error;
  fs::path place = fs::absolute(output).lexically_normal();
  fs::file_status status = fs::status(place, error);
  while (status.type() == fs::file_type::not_found && place.has_relative_path()) {
    place = place.parent_path();
    status = fs::status(place, error);
  }
  if (status.type() != fs::file_type::none && !fs::is_directory(status)) {
    throw UserError(
        "training.output: {} is a file, where a folder belongs; give another one", place.string());
  }
  if (status.type() == fs::file_type::none || ::access(place.c_str(), W_OK | X_OK) != 0) {
    throw EnvironmentError(
        "training.output: cannot write into {}: {}",
        place.string(),
        error ? error.message() : std::generic_category().message(errno));
  }
}

/// What a folder without checkpoints is, and what to do about it.
std::string describe_other(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return "is a file";
  }
  if (is_there(folder / kRunName)) {
    const bool trained = is_there(folder / "model");
    return fmt::format(
        "holds run {}, which has saved no checkpoint{}",
        read_run_id(folder).value_or("unknown"),
        trained ? "; its trained model is in " + (folder / "model").string() : " yet");
  }
  if (is_there(folder / "config.json")) {
    return "is a model folder";
  }
  std::vector<std::string> names = names_in(folder);
  std::ranges::sort(names);
  constexpr size_t kMostNamed = 5;
  const bool more = names.size() > kMostNamed;
  names.resize(std::min(names.size(), kMostNamed));
  return names.empty() ? "is empty"
                       : fmt::format("holds {}{}", fmt::join(names, ", "), more ? ", ..." : "");
}

} // namespace

void require_checkpoints(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
    const bool damaged = parse_step_folder(name).has_value(); // its reader says in which way
    if (is_there(path / kManifestName) || damaged || !list_checkpoints(path).empty()) {
      return;
    }
  }
  if (!fs::exists(path, error)) {
    throw UserError("there is no {}; give a run's output folder or a checkpoint", path.string());
  }
  throw UserError(
      "{} is no checkpoint and holds none: it {}; give a run's output folder, or one of its "
      "folders step-...",
      path.string(),
      describe_other(path));
}

fs::path find_checkpoint(const fs::path& path) {
  require_checkpoints(path);
  if (is_there(path / kManifestName)) {
    return path;
  }
  std::vector<std::string> notes;
  const auto newest = newest_checkpoint(path, Damaged::kRefuse, notes);
  return newest ? newest->folder : path;
}

std::optional<std::string> read_run_id(const fs::path& output) {
  const fs::path file = output / kRunName;
  if (!is_there(file)) {
    return std::nullopt;
  }
  const nlohmann::json run = parse_json(read_file(file), file.string());
  if (!run.is_object() || !run.contains("run_id") || !run["run_id"].is_string() ||
      run["run_id"].get<std::string>().empty()) {
    throw UserError("{}: there is no run_id; the file is damaged", file.string());
  }
  return run["run_id"].get<std::string>();
}

std::optional<fs::path> checkpoint_before(const fs::path& output, const fs::path& checkpoint) {
  std::optional<fs::path> before;
  for (const NumberedCheckpoint& numbered : list_checkpoints(output)) {
    if (numbered.folder == checkpoint) {
      return before;
    }
    before = numbered.folder;
  }
  return std::nullopt;
}

std::string step_folder(int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

fs::path temporary_folder(const fs::path& output, int64_t step) {
  return output / fmt::format(".{}{}", step_folder(step), kSaving);
}

std::optional<int64_t> parse_step_folder(std::string_view name) {
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  int64_t step = 0;
  const auto parsed =
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  const bool ours = parsed.ec == std::errc() && step >= 0 && step_folder(step) == name;
  return ours ? std::optional(step) : std::nullopt;
}

std::vector<NumberedCheckpoint> list_checkpoints(const fs::path& output) {
  std::vector<NumberedCheckpoint> all;
  for (const std::string& name : names_in(output)) {
    std::error_code error;
    if (const auto step = parse_step_folder(name); step && fs::is_directory(output / name, error)) {
      all.push_back({*step, output / name});
    }
  }
  std::ranges::sort(all, {}, &NumberedCheckpoint::step);
  return all;
}

std::optional<NumberedCheckpoint> newest_checkpoint(
    const fs::path& output,
    Damaged damaged,
    std::vector<std::string>& notes) {
  std::vector<NumberedCheckpoint> all = list_checkpoints(output);
  for (; !all.empty(); all.pop_back()) {
    try {
      const CheckpointReader reader(all.back().folder);
      return all.back();
    } catch (const Error& error) {
      if (damaged == Damaged::kRefuse) {
        throw;
      }
      notes.push_back(fmt::format("skipped {}: {}", all.back().folder.string(), error.what()));
    }
  }
  return std::nullopt;
}

std::vector<fs::path> delete_old_checkpoints(
    const fs::path& output,
    int64_t keep,
    std::vector<std::string>& notes) {
  check(keep >= 1, "the newest checkpoint is never deleted");
  std::vector<fs::path> deleted;
  int64_t whole = 0; // a damaged one does not count as kept
  std::vector<NumberedCheckpoint> all = list_checkpoints(output);
  std::ranges::reverse(all);
  for (const NumberedCheckpoint& old : all) {
    if (whole < keep) {
      whole += opens(old.folder) ? 1 : 0;
      continue;
    }
    const FileDescriptor manifest(
        ::open((old.folder / kManifestName).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!lock_for_deletion(manifest)) {
      continue;
    }
    const fs::path doomed = doomed_folder(old.folder);
    try {
      move(old.folder, doomed);
      remove_tree(doomed);
      deleted.push_back(old.folder);
    } catch (const EnvironmentError& error) {
      notes.emplace_back(error.what());
    }
  }
  return deleted;
}

std::vector<std::string> remove_leftovers(const fs::path& output) {
  std::vector<std::string> failures;
  for (const std::string& name : names_in(output)) {
    if (!name.starts_with('.')) {
      continue;
    }
    for (const std::string_view ending : {kSaving, kDeleting}) {
      const std::string_view hidden = std::string_view(name).substr(1);
      if (hidden.ends_with(ending) &&
          parse_step_folder(hidden.substr(0, hidden.size() - ending.size()))) {
        try {
          remove_tree(output / name);
        } catch (const EnvironmentError& error) {
          failures.emplace_back(error.what());
        }
      }
    }
  }
  return failures;
}

void replace_by_renames(const fs::path& from, const fs::path& to) {
  const fs::path old = doomed_folder(to);
  move(to, old);
  try {
    move(from, to);
  } catch (const EnvironmentError&) {
    move(old, to);
    throw;
  }
}

RunStart decide_start(const StartRequest& request) {
  require_writable(request.output);
  require_unlocked(request.output);
  const bool holds = holds_run(request.output);
  const bool named = !request.resume.empty() && request.resume != "auto";
  RunStart start;
  start.newest_step = newest_step(request.output);
  if (request.restart || (!holds && !named)) {
    check(!named, "restart and a checkpoint to resume from contradict each other");
    // An id without a step behind it: the run failed before its first one, or another rank of this
    // run has begun it.
    const auto begun = holds ? std::nullopt : read_run_id(request.output);
    start.run_id = begun.value_or(new_run_id());
    if (holds) {
      start.notes.push_back(fmt::format(
          "restart: what {} holds is moved to a folder previous-N in it", request.output.string()));
    }
    return start;
  }
  const CheckpointReader reader =
      named ? open_named(request, holds) : open_newest(request, start.notes);
  start.is_new = !holds;
  start.run_id =
      holds ? reader.info().run_id() : read_run_id(request.output).value_or(new_run_id());
  start.checkpoint = reader.folder();
  const std::vector<std::string> changes = request.changes(reader.config_text());
  if (!changes.empty() && !request.allow_change) {
    throw UserError(
        "{} was saved under a config that computes something else; undo the changes, allow them "
        "with --allow-change, or begin anew in another training.output:\n  {}",
        reader.folder().string(),
        fmt::join(changes, "\n  "));
  }
  for (const std::string& change : changes) {
    start.notes.push_back("changed since the checkpoint: " + change);
  }
  start.notes.push_back(fmt::format(
      "resuming run {} at step {} from {}",
      reader.info().run_id(),
      reader.info().step(),
      reader.folder().string()));
  return start;
}

FileDescriptor begin_run(const fs::path& output, RunStart& start) {
  check_writable_folder(output);
  FileDescriptor lock = lock_output(output, start.notes);
  if (newest_step(output) != start.newest_step) {
    throw UserError(
        "training.output: another run has saved to {} while this one started; start it again",
        output.string());
  }
  if (start.is_new && holds_run(output)) {
    int number = 1;
    while (is_there(output / fmt::format("previous-{}", number))) {
      ++number;
    }
    const fs::path previous = output / fmt::format("previous-{}", number);
    std::error_code error;
    if (!fs::create_directory(previous, error)) {
      throw EnvironmentError("cannot create folder {}: {}", previous.string(), error.message());
    }
    for (const NumberedCheckpoint& old : list_checkpoints(output)) {
      move(old.folder, previous / old.folder.filename());
    }
    for (const std::string_view name : kRunFiles) {
      if (is_there(output / name)) {
        move(output / name, previous / name);
      }
    }
  }
  if (read_run_id(output) != start.run_id) {
    const nlohmann::json run = {{"run_id", start.run_id}};
    write_file_atomically(output / kRunName, run.dump(2) + "\n");
  }
  return lock;
}

} // namespace palimpsest
