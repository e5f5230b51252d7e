#include <palimpsest/core/io/checkpoint_writer.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/finite.h>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

namespace palimpsest {
namespace fs = std::filesystem;
namespace {

/// Checksums of a stream's blocks, however the stream is cut.
class BlockChecksums {
 public:
  BlockChecksums() : state_(XXH3_createState()) {
    check(state_ != nullptr, "no memory for a checksum");
    XXH3_64bits_reset(state_.get());
  }

  void add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto room = static_cast<size_t>(kChecksumBlock - filled_);
      const std::span part = bytes.first(std::min(room, bytes.size()));
      XXH3_64bits_update(state_.get(), part.data(), part.size());
      filled_ += static_cast<int64_t>(part.size());
      bytes = bytes.subspan(part.size());
      if (filled_ == kChecksumBlock) {
        finish_block();
      }
    }
  }

  std::vector<uint64_t> finish() {
    if (filled_ > 0) {
      finish_block();
    }
    return std::move(sums_);
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const {
      XXH3_freeState(state);
    }
  };

  void finish_block() {
    sums_.push_back(XXH3_64bits_digest(state_.get()));
    XXH3_64bits_reset(state_.get());
    filled_ = 0;
  }

  std::unique_ptr<XXH3_state_t, Free> state_;
  int64_t filled_ = 0;
  std::vector<uint64_t> sums_;
};

/// The values that training changes; moments may overflow without harm to the model.
bool must_be_finite(const StateDeclaration& state) {
  return state.trainable && (state.state == kParameterState || state.state == kMasterState);
}

/// "master/model.norm.weight", or with the elements where it is a part.
std::string stored_name(const StatePiece& piece) {
  const std::string name = piece.whole.state + "/" + piece.whole.name;
  return piece.count == piece.whole.elements()
      ? name
      : fmt::format("{}[{}:{}]", name, piece.begin, piece.begin + piece.count);
}

std::string rank_file(int rank, std::string_view ending) {
  return fmt::format("rank-{:05}.{}", rank, ending);
}

/// Writes a rank's pieces and describes them.
class PartWriter {
 public:
  PartWriter(const fs::path& folder, const Checkpoint& checkpoint, int rank)
      : folder_(folder), checkpoint_(checkpoint), rank_(rank) {
    part_.set_format_version(kManifestVersion);
    *part_.mutable_info() = checkpoint.info;
  }

  void write_states(const PieceSource& source) {
    std::map<std::string, const StatePiece*> pieces; // by the name in the file
    std::vector<TensorDeclaration> declarations;
    for (const StatePiece& piece : checkpoint_.pieces) {
      const bool whole = piece.count == piece.whole.elements();
      if (piece.count == 0 && !whole) {
        continue; // an empty shard
      }
      const std::string name = stored_name(piece);
      pieces.emplace(name, &piece);
      declarations.push_back(
          {name, piece.whole.dtype, whole ? piece.whole.shape : std::vector<int64_t>{piece.count}});
    }
    if (declarations.empty()) {
      return;
    }
    const CheckpointInfo& info = checkpoint_.info;
    const std::string file = rank_file(rank_, "safetensors");
    SafetensorsWriter writer(
        folder_ / file,
        std::move(declarations),
        {{"run_id", info.run_id()},
         {"step", std::to_string(info.step())},
         {"rank", std::to_string(rank_)}});
    for (const StoredTensor& stored : writer.tensors()) {
      write_piece(*pieces.at(stored.name), stored, writer, source);
    }
    writer.commit();
    describe_file(file);
  }

  /// What only one rank writes: the config, and the model's small files.
  void write_side_files() {
    write_side_file(std::string(kRunConfigName), checkpoint_.config_text);
    const HfFolderLayout& model = checkpoint_.model;
    const fs::path folder(kModelFolderName);
    write_side_file(folder / "config.json", model.config_text);
    for (const auto& [name, text] : model.small_files) {
      write_side_file(folder / name, text);
    }
    part_.mutable_model()->set_sharded(model.sharded);
    for (const HfFileLayout& file : model.files) {
      auto* entry = part_.mutable_model()->add_files();
      entry->set_name(file.name);
      entry->mutable_metadata()->insert(file.metadata.begin(), file.metadata.end());
      for (const TensorDeclaration& tensor : file.tensors) {
        auto* described = entry->add_tensors();
        described->set_name(tensor.name);
        described->set_dtype(std::string(name_of(tensor.dtype)));
        described->mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
      }
    }
  }

  void commit() {
    write_manifest(folder_ / rank_file(rank_, "part"), part_);
  }

  const CheckpointManifest& part() const {
    return part_;
  }
  int64_t bytes() const {
    return bytes_;
  }

 private:
  void write_piece(
      const StatePiece& piece,
      const StoredTensor& stored,
      SafetensorsWriter& writer,
      const PieceSource& source) {
    BlockChecksums sums;
    const int width = bits_per_element(stored.dtype) / 8;
    const bool watched = must_be_finite(piece.whole);
    source(piece, [&](std::span<const std::byte> bytes) {
      check(bytes.size() % static_cast<size_t>(width) == 0, "{} comes in halves", stored.name);
      sums.add(bytes);
      if (watched && !part_.has_not_finite() && any_not_finite(bytes, stored.dtype)) {
        part_.set_not_finite(piece.whole.name);
      }
      writer.write(stored.name, bytes);
    });
    auto* tensor = part_.add_tensors();
    tensor->set_name(piece.whole.name);
    tensor->set_state(piece.whole.state);
    tensor->set_dtype(std::string(name_of(stored.dtype)));
    tensor->mutable_shape()->Add(piece.whole.shape.begin(), piece.whole.shape.end());
    tensor->set_trainable(piece.whole.trainable);
    auto* described = tensor->add_pieces();
    described->set_file(rank_file(rank_, "safetensors"));
    described->set_begin(piece.begin);
    described->set_count(piece.count);
    described->set_offset(stored.begin); // the header's length is added when the file is complete
    described->set_bytes(stored.bytes());
    const std::vector<uint64_t> all = sums.finish();
    described->mutable_checksums()->Add(all.begin(), all.end());
    bytes_ += stored.bytes();
  }

  void describe_file(const std::string& name) {
    const MappedFile stored(folder_ / name);
    const auto size = static_cast<int64_t>(stored.bytes().size());
    const int64_t header = size - bytes_;
    auto* file = part_.add_files();
    file->set_name(name);
    file->set_rank(rank_);
    file->set_bytes(size);
    file->set_header_bytes(header);
    file->set_header_checksum(checksum(stored.bytes().first(static_cast<size_t>(header))));
    for (auto& tensor : *part_.mutable_tensors()) {
      for (auto& piece : *tensor.mutable_pieces()) {
        piece.set_offset(piece.offset() + header);
      }
    }
  }

  void write_side_file(const fs::path& name, const std::string& text) {
    const fs::path parent = (folder_ / name).parent_path();
    fs::create_directories(parent);
    write_file_atomically(folder_ / name, text);
    sync_folder(parent.parent_path());
    auto* side = part_.add_side_files();
    side->set_name(name.string());
    side->set_bytes(static_cast<int64_t>(text.size()));
    side->set_checksum(checksum(std::as_bytes(std::span(text))));
  }

  const fs::path& folder_;
  const Checkpoint& checkpoint_;
  int rank_;
  CheckpointManifest part_;
  int64_t bytes_ = 0;
};

/// The ranks' parts, in order of rank.
std::vector<CheckpointManifest> read_parts(const fs::path& folder, int world) {
  std::vector<CheckpointManifest> parts;
  for (int rank = 0; rank < world; ++rank) {
    const fs::path file = folder / rank_file(rank, "part");
    std::error_code error;
    if (!fs::exists(file, error)) {
      throw EnvironmentError(
          "{} is missing: rank {} does not write to the same folder; the output folder must be one "
          "that all ranks share",
          file.string(),
          rank);
    }
    parts.push_back(read_part(file));
  }
  return parts;
}

/// Merges the ranks' parts into the manifest, and removes them.
void complete(const fs::path& folder, int world) {
  write_manifest(folder / kManifestName, merge_parts(read_parts(folder, world)));
  for (int rank = 0; rank < world; ++rank) {
    fs::remove(folder / rank_file(rank, "part"));
  }
  sync_folder(folder);
}

/// One rename; where `to` exists the two change places, so the old one is left under a hidden name.
void put_in_place(const fs::path& from, const fs::path& to) {
  std::error_code error;
  const bool replaces = fs::exists(to, error);
  int result = ::renameat2(
      AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE);
  if (result != 0 && (errno == EINVAL || errno == ENOSYS)) { // a file system without these flags
    if (replaces) {
      replace_by_renames(from, to);
      result = 0;
    } else {
      result = ::rename(from.c_str(), to.c_str());
    }
  }
  if (result != 0) {
    throw EnvironmentError(
        "cannot write {}: {}", to.string(), std::generic_category().message(errno));
  }
  sync_folder(to.parent_path());
}

void make_temporary(const fs::path& output, const fs::path& temporary) {
  fs::create_directories(output);
  const std::vector<std::string> remaining = remove_leftovers(output);
  if (!fs::create_directory(temporary)) {
    throw EnvironmentError(
        "cannot write {}: an earlier save left it: {}",
        temporary.string(),
        fmt::join(remaining, "; "));
  }
}

/// What a finished save makes superfluous. The checkpoint is there, so failures are but told.
void delete_superfluous(
    const fs::path& output,
    std::optional<int64_t> keep_last,
    SavedCheckpoint& saved) {
  try {
    if (keep_last) {
      saved.deleted = delete_old_checkpoints(output, *keep_last, saved.warnings);
    }
    for (std::string& failure : remove_leftovers(output)) {
      saved.warnings.push_back(std::move(failure));
    }
  } catch (const std::exception& error) {
    saved.warnings.emplace_back(error.what());
  }
}

/// Runs a phase of the save on all ranks. Where it fails on any, it fails on all, and nothing of
/// the save remains.
class Phases {
 public:
  Phases(const SavingRanks& ranks, int64_t step, fs::path temporary)
      : ranks_(ranks), step_(step), temporary_(std::move(temporary)) {}

  void run(const std::function<void()>& action) const {
    std::exception_ptr failure;
    try {
      action();
    } catch (const fs::filesystem_error& error) {
      failure = std::make_exception_ptr(
          EnvironmentError("cannot write {}: {}", error.path1().string(), error.code().message()));
    } catch (...) {
      failure = std::current_exception();
    }
    if (ranks_.agree(failure == nullptr)) {
      return;
    }
    undo();
    if (failure != nullptr) {
      std::rethrow_exception(failure);
    }
    throw EnvironmentError(
        "step {} was not saved: another rank could not write its part; older checkpoints remain as "
        "they were",
        step_);
  }

  void undo() const {
    if (ranks_.rank == 0) {
      std::error_code error;
      fs::remove_all(temporary_, error);
    }
  }

 private:
  const SavingRanks& ranks_;
  int64_t step_;
  fs::path temporary_;
};

} // namespace

SavedCheckpoint save_checkpoint(
    const fs::path& output,
    const Checkpoint& checkpoint,
    const PieceSource& source,
    const SavingRanks& ranks,
    std::optional<int64_t> keep_last) {
  const int64_t step = checkpoint.info.step();
  const bool first = ranks.rank == 0;
  const fs::path target = output / step_folder(step);
  const fs::path temporary = temporary_folder(output, step);
  const Phases phases(ranks, step, temporary);
  SavedCheckpoint saved;
  phases.run([&] {
    if (first) {
      make_temporary(output, temporary);
    }
  });
  PartWriter writer(temporary, checkpoint, ranks.rank);
  phases.run([&] {
    writer.write_states(source);
    if (first) {
      writer.write_side_files();
    }
    writer.commit();
  });
  saved.bytes = writer.bytes();
  if (!ranks.agree(!writer.part().has_not_finite())) {
    phases.run([&] {
      if (first) {
        const std::vector<CheckpointManifest> parts = read_parts(temporary, ranks.world);
        const auto found = std::ranges::find_if(parts, &CheckpointManifest::has_not_finite);
        check(found != parts.end(), "no rank says what is not finite");
        saved.not_finite = found->not_finite();
      }
    });
    phases.undo();
    return saved;
  }
  phases.run([&] {
    if (first) {
      complete(temporary, ranks.world);
      put_in_place(temporary, target);
    }
  });
  if (first) {
    delete_superfluous(output, keep_last, saved);
  }
  saved.folder = target;
  return saved;
}

} // namespace palimpsest
