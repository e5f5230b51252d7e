#pragma once

// Files whole or not at all: reading with a clear error, mapping, and writing that survives a
// crash.
//
//   MappedFile weights("model.safetensors");         // weights.bytes() are read from disk when touched
//   write_file_atomically("run/state.json", text);   // the old content or the new one, never half of it
//
//   AtomicFolder folder("run/model");                // files go to folder.path(), a hidden sibling
//   write_file_atomically(folder.path() / "config.json", text);
//   folder.commit();                                 // fsync, then one rename
//
// What the user named and is not there (or is a folder) is a UserError; what the system refuses
// (permission, full disk, I/O) is an EnvironmentError with the path and the system's own words. A
// file beyond the shell's size limit raises SIGXFSZ unless the program ignores that signal;
// ignored, it is an EnvironmentError too.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace palimpsest {

/// An open file descriptor, closed at the end. Move-only.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const {
    return fd_;
  }
  /// Closes now; throws EnvironmentError naming `path` where the system reports a late write error.
  void close(const std::filesystem::path& path);

 private:
  int fd_;
};

/// A file of the disk, mapped read-only. A file that another process shortens meanwhile raises
/// SIGBUS when read beyond its new end, as with every mapping.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const {
    return path_;
  }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), size_};
  }
  /// Gives this part's pages back, so that a model streamed from a file does not stay resident; a
  /// later read fetches them again.
  void forget(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

inline constexpr int64_t kReadFileLimit = int64_t{1} << 30;

/// The bytes of a file (or pipe). More than `limit` bytes is a UserError.
std::string read_file(const std::filesystem::path& path, int64_t limit = kReadFileLimit);

/// A file written under a temporary name beside its own and renamed by commit(), after fsync.
/// Without commit() nothing remains. A device such as /dev/null is written directly.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(AtomicFile&&) = delete;
  ~AtomicFile();

  const std::filesystem::path& path() const {
    return path_;
  }
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) {
    write(std::as_bytes(std::span(text)));
  }
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_; // equal to path_ for a device
  FileDescriptor file_;
  bool committed_ = false;
};

/// AtomicFile in one call.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// What to do where the target of an AtomicFolder already holds files.
enum class Existing { kRefuse, kReplace };

/// A folder filled under a temporary name beside its own and renamed by commit(). Parents are
/// created. Without commit() nothing remains. `Refuse` throws UserError where the target is a file
/// or a folder with something in it; `Replace` swaps the two in one step and then removes the old
/// one.
class AtomicFolder {
 public:
  explicit AtomicFolder(std::filesystem::path path, Existing existing = Existing::kRefuse);
  AtomicFolder(AtomicFolder&&) = delete;
  ~AtomicFolder();

  /// Where to write the files.
  const std::filesystem::path& path() const {
    return temporary_;
  }
  const std::filesystem::path& target() const {
    return path_;
  }
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  Existing existing_;
  bool committed_ = false;
};

/// Creates the folder with its parents and proves by a file written and removed that it takes
/// output. For the start of a run, so that an unwritable output is an EnvironmentError before the
/// first step.
void check_writable_folder(const std::filesystem::path& folder);

/// Makes a rename or a new file in `folder` survive a power cut.
void sync_folder(const std::filesystem::path& folder);

} // namespace palimpsest
