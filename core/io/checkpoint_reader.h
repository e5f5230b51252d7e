#pragma once

// Reads a checkpoint by ranges of elements, whatever layout wrote it.
//
//   CheckpointReader reader("runs/a/step-00001000");
//   reader.compare_with(expected);                              // all faults at once, before anything is read
//   reader.read("model.norm.weight", "master", 10, 20, bytes);  // elements [10, 20)
//
// Opening checks the manifest and that every file is there, whole, and of this run and step. Every
// block of a range is verified as it is read. Reading is safe from several threads, and while a
// reader lives its checkpoint is not deleted by another process's saves.

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/io/checkpoint_manifest.h>
#include <palimpsest/core/io/hf_folder.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace palimpsest {

class CheckpointReader {
 public:
  /// UserError naming the file and what is wrong with it.
  explicit CheckpointReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const {
    return folder_;
  }
  const CheckpointManifest& manifest() const {
    return manifest_;
  }
  const CheckpointInfo& info() const {
    return manifest_.info();
  }
  /// The config of the run that wrote it, as YAML. UserError where the file is damaged.
  std::string config_text() const;
  /// The layout that an export writes; its small files come from this checkpoint. UserError where
  /// one of them is missing or damaged.
  HfFolderLayout model_layout() const;

  /// UserError counting at once the states that are missing, unexpected, or of another shape or
  /// dtype, with the first few of each kind.
  void compare_with(std::span<const StateDeclaration> expected) const;

  /// Elements [begin, end) of a state into `destination`, which has exactly their bytes. UserError
  /// naming file, tensor and range where a file is damaged; InternalError where there is no such
  /// state or range.
  void read(
      std::string_view tensor,
      std::string_view state,
      int64_t begin,
      int64_t end,
      std::span<std::byte> destination) const;

  /// Reads everything, small files too, and verifies all checksums.
  void verify() const;

 private:
  /// A small file's text, verified.
  std::string side_file(const std::filesystem::path& name) const;
  void read_piece(
      const CheckpointManifest::Tensor& tensor,
      const CheckpointManifest::Piece& piece,
      int64_t begin,
      std::span<std::byte> destination) const;

  std::filesystem::path folder_;
  FileDescriptor lock_; // the manifest's, locked against deletion
  CheckpointManifest manifest_;
};

} // namespace palimpsest
