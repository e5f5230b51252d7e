#include <palimpsest/core/base/files.h>

#include <palimpsest/core/base/error.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

namespace palimpsest {
namespace fs = std::filesystem;
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

[[noreturn]] void throw_environment(std::string_view action, const fs::path& path, int error) {
  throw EnvironmentError("cannot {} {}: {}", action, path.string(), reason(error));
}

/// What was named wrongly is the user's, the rest the environment's.
[[noreturn]] void throw_unreadable(const fs::path& path, int error) {
  if (error == ENOENT || error == ENOTDIR || error == EISDIR || error == ENAMETOOLONG ||
      error == ELOOP) {
    throw UserError("cannot read {}: {}; check the path", path.string(), reason(error));
  }
  throw_environment("read", path, error);
}

/// Opens for reading; without O_NONBLOCK a named pipe without a writer would hang before it can be
/// refused.
FileDescriptor open_for_reading(const fs::path& path, int flags = 0) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (file.get() < 0) {
    throw_unreadable(path, errno);
  }
  return file;
}

struct stat status_of(const FileDescriptor& file, const fs::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw_unreadable(path, errno);
  }
  if (S_ISDIR(status.st_mode)) {
    throw_unreadable(path, EISDIR);
  }
  return status;
}

/// A hidden name beside `path`, free as long as the process that made it lives.
fs::path temporary_name(const fs::path& path, int attempt) {
  return path.parent_path() /
      fmt::format(".{}.tmp-{}-{}", path.filename().string(), ::getpid(), attempt);
}

/// The file itself where `path` is a link to it, so that a rename does not replace the link.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? path : real;
}

void write_all(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  constexpr size_t kMaxWrite = size_t{1} << 30; // the system takes less than 2 GiB at once
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      throw_environment("write", path, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void sync_path(const fs::path& path, int flags) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  // EINVAL: a file system without fsync for this kind of file.
  if (file.get() < 0 || (::fsync(file.get()) != 0 && errno != EINVAL)) {
    throw_environment("sync", path, errno);
  }
}

void sync_tree(const fs::path& folder) {
  try {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      sync_path(entry.path(), entry.is_directory() ? O_DIRECTORY : 0);
    }
  } catch (const fs::filesystem_error& error) {
    throw EnvironmentError("cannot sync {}: {}", folder.string(), error.code().message());
  }
  sync_path(folder, O_DIRECTORY);
}

void create_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw EnvironmentError("cannot create folder {}: {}", folder.string(), error.message());
  }
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

} // namespace

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void FileDescriptor::close(const fs::path& path) {
  if (::close(std::exchange(fd_, -1)) != 0) {
    throw_environment("write", path, errno);
  }
}

MappedFile::MappedFile(fs::path path) : path_(std::move(path)) {
  const FileDescriptor file = open_for_reading(path_, O_NONBLOCK);
  const struct stat status = status_of(file, path_);
  if (!S_ISREG(status.st_mode)) {
    throw UserError("cannot read {}: it is not a regular file", path_.string());
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) {
    return; // an empty mapping does not exist
  }
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    throw_environment("map", path_, errno);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

void MappedFile::forget(std::span<const std::byte> part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page * page;
  if (begin < end) {
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

std::string read_file(const fs::path& path, int64_t limit) {
  const FileDescriptor file = open_for_reading(path);
  const struct stat status = status_of(file, path);
  std::string text;
  text.reserve(static_cast<size_t>(std::clamp<int64_t>(status.st_size, 0, limit)));
  std::vector<char> buffer(size_t{1} << 16);
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw_unreadable(path, errno);
    }
    if (count == 0) {
      return text;
    }
    text.append(buffer.data(), static_cast<size_t>(count));
    if (static_cast<int64_t>(text.size()) > limit) {
      throw UserError("cannot read {}: it is larger than {} bytes", path.string(), limit);
    }
  }
}

AtomicFile::AtomicFile(fs::path path) : path_(resolved(path)) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::is_directory(status)) {
    throw_environment("write", path_, EISDIR);
  }
  constexpr int kFlags = O_WRONLY | O_CLOEXEC;
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    temporary_ = path_;
    file_ = FileDescriptor(::open(path_.c_str(), kFlags));
  }
  for (int attempt = 0; file_.get() < 0 && temporary_ != path_; ++attempt) {
    temporary_ = temporary_name(path_, attempt);
    file_ = FileDescriptor(::open(temporary_.c_str(), kFlags | O_CREAT | O_EXCL, 0666));
    if (file_.get() < 0 && errno != EEXIST) {
      break;
    }
  }
  if (file_.get() < 0) {
    const int open_error = errno;
    committed_ = true; // nothing to remove
    throw_environment("write", path_, open_error);
  }
}

AtomicFile::~AtomicFile() {
  if (!committed_ && temporary_ != path_) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write_all(file_.get(), bytes, path_);
}

void AtomicFile::commit() {
  check(!committed_, "{} is committed twice", path_.string());
  if (temporary_ == path_) {
    file_.close(path_);
    committed_ = true;
    return;
  }
  if (::fsync(file_.get()) != 0) {
    throw_environment("write", path_, errno);
  }
  file_.close(path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw_environment("write", path_, errno);
  }
  committed_ = true;
  sync_folder(parent_of(path_));
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

AtomicFolder::AtomicFolder(fs::path path, Existing existing)
    : path_(std::move(path)), existing_(existing) {
  if (!path_.has_filename()) {
    path_ = path_.parent_path(); // "run/model/"
  }
  if (path_.empty() || path_ == path_.root_path() || path_.filename() == "." ||
      path_.filename() == "..") {
    throw UserError("cannot write the folder \"{}\": give it a name", path_.string());
  }
  path_ = resolved(path_);
  std::error_code error;
  if (fs::exists(path_, error) && !fs::is_directory(path_, error)) {
    throw UserError("cannot write the folder {}: a file is in its place", path_.string());
  }
  if (existing_ == Existing::kRefuse && fs::is_directory(path_, error) &&
      !fs::is_empty(path_, error)) {
    throw UserError(
        "cannot write the folder {}: it exists and is not empty; choose another name or remove it",
        path_.string());
  }
  create_folders(parent_of(path_));
  for (int attempt = 0;; ++attempt) {
    temporary_ = temporary_name(path_, attempt);
    if (::mkdir(temporary_.c_str(), 0777) == 0) {
      return;
    }
    if (errno != EEXIST) {
      throw_environment("create folder", path_, errno);
    }
  }
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) {
    std::error_code error;
    fs::remove_all(temporary_, error);
  }
}

void AtomicFolder::commit() {
  check(!committed_, "{} is committed twice", path_.string());
  sync_tree(temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) == 0) {
    committed_ = true;
    sync_folder(parent_of(path_));
    return;
  }
  if (errno != ENOTEMPTY && errno != EEXIST) {
    throw_environment("write the folder", path_, errno);
  }
  if (existing_ == Existing::kRefuse) {
    throw UserError("cannot write the folder {}: it was filled meanwhile", path_.string());
  }
  // Old and new change places; what then bears the temporary name is the old one.
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
    // A file system without the exchange: for a moment only the old one's other name exists.
    const fs::path old = temporary_.string() + "-old";
    if (::rename(path_.c_str(), old.c_str()) != 0 ||
        ::rename(temporary_.c_str(), path_.c_str()) != 0) {
      throw_environment("write the folder", path_, errno);
    }
    temporary_ = old;
  }
  committed_ = true;
  sync_folder(parent_of(path_));
  std::error_code error;
  fs::remove_all(temporary_, error);
}

void check_writable_folder(const fs::path& folder) {
  create_folders(folder);
  for (int attempt = 0;; ++attempt) {
    const fs::path probe = temporary_name(folder / "probe", attempt);
    FileDescriptor file(::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() < 0 && errno == EEXIST) {
      continue;
    }
    if (file.get() < 0) {
      throw_environment("write into folder", folder, errno);
    }
    const bool written = ::write(file.get(), "x", 1) == 1;
    const int error = errno;
    ::unlink(probe.c_str());
    if (!written) {
      throw_environment("write into folder", folder, error);
    }
    return;
  }
}

void sync_folder(const fs::path& folder) {
  sync_path(folder, O_DIRECTORY);
}

} // namespace palimpsest
