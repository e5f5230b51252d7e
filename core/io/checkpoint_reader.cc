#include <palimpsest/core/io/checkpoint_reader.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/json.h>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

namespace palimpsest {
namespace fs = std::filesystem;
namespace {

/// Opens the manifest and keeps it from being deleted by others. File systems without locks give
/// none, and then nothing holds a deletion up.
FileDescriptor lock_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 && (errno == ENOENT || errno == ENOTDIR)) {
    if (!fs::exists(folder)) {
      throw UserError("there is no {}; give a checkpoint's folder", folder.string());
    }
    throw UserError(
        "{} is no checkpoint, or not a complete one: it has no {}", folder.string(), kManifestName);
  }
  if (file.get() < 0) {
    throw EnvironmentError(
        "cannot read {}: {}", path.string(), std::generic_category().message(errno));
  }
  if (::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw UserError("{} is being deleted by another process", folder.string());
  }
  return file;
}

/// Fills `bytes` from the file's byte `offset` on.
void read_at(
    const FileDescriptor& file,
    const fs::path& path,
    int64_t offset,
    std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file.get(), bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw EnvironmentError(
          "cannot read {}: {}", path.string(), std::generic_category().message(errno));
    }
    if (count == 0) {
      throw UserError("{}: the file ends at byte {}; it is cut short", path.string(), offset);
    }
    offset += count;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

int64_t element_bytes(const CheckpointManifest::Tensor& tensor) {
  return bits_per_element(parse_stored_dtype(tensor.dtype()).value()) / 8;
}

/// The file must be the one that the save wrote: of this run, step and rank, whole, and laid out as
/// the manifest says.
void check_file(
    const fs::path& path,
    const CheckpointManifest::File& file,
    const CheckpointInfo& info) {
  const MappedFile stored(path);
  const auto metadata = parse_safetensors(stored.bytes(), path.string()).metadata;
  const auto says = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string("unknown") : found->second;
  };
  if (says("run_id") != info.run_id() || says("step") != std::to_string(info.step()) ||
      says("rank") != std::to_string(file.rank())) {
    throw UserError(
        "{}: the file belongs to another checkpoint: rank {}, step {}, run {}, but the manifest "
        "says rank {}, step {}, run {}",
        path.string(),
        quote(says("rank")),
        quote(says("step")),
        quote(says("run_id")),
        file.rank(),
        info.step(),
        quote(info.run_id()));
  }
  const auto size = static_cast<int64_t>(stored.bytes().size());
  if (size != file.bytes() ||
      checksum(stored.bytes().first(static_cast<size_t>(file.header_bytes()))) !=
          file.header_checksum()) {
    throw UserError(
        "{}: {} bytes with a header that the manifest does not know (it says {} bytes); the file "
        "was changed or damaged",
        path.string(),
        size,
        file.bytes());
  }
}

/// A line of its own, empty where there are none.
std::string first_few(const char* kind, const std::vector<std::string>& all) {
  constexpr size_t kMost = 3;
  if (all.empty()) {
    return "";
  }
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), kMost));
  return fmt::format(
      "\n  {} {}: {}{}",
      all.size(),
      kind,
      fmt::join(all.begin(), end, "; "),
      all.size() > kMost ? "; ..." : "");
}

} // namespace

CheckpointReader::CheckpointReader(fs::path folder)
    : folder_(std::move(folder)), lock_(lock_manifest(folder_)),
      manifest_(read_manifest(folder_ / kManifestName)) {
  const fs::path plain = folder_.has_filename() ? folder_ : folder_.parent_path();
  const auto named = parse_step_folder(plain.filename().string());
  if (named && *named != info().step()) {
    throw UserError(
        "{}: the manifest is that of step {}; the folder was renamed or its files were mixed",
        folder_.string(),
        info().step());
  }
  for (const auto& file : manifest_.files()) {
    check_file(folder_ / file.name(), file, info());
  }
}

std::string CheckpointReader::side_file(const fs::path& name) const {
  const auto& all = manifest_.side_files();
  const auto side = std::ranges::find(all, name.string(), &CheckpointManifest::SideFile::name);
  if (side == all.end()) {
    throw UserError("{}: the checkpoint has no {}", folder_.string(), name.string());
  }
  std::string text = read_file(folder_ / name);
  if (static_cast<int64_t>(text.size()) != side->bytes() ||
      checksum(std::as_bytes(std::span(text))) != side->checksum()) {
    throw UserError(
        "{}: the file does not match its checksum; it was changed or damaged",
        (folder_ / name).string());
  }
  return text;
}

std::string CheckpointReader::config_text() const {
  return side_file(kRunConfigName);
}

HfFolderLayout CheckpointReader::model_layout() const {
  HfFolderLayout layout;
  for (const auto& side : manifest_.side_files()) {
    const fs::path name(side.name());
    if (*name.begin() == kModelFolderName) {
      layout.small_files.emplace(
          name.lexically_relative(kModelFolderName).string(), side_file(side.name()));
    }
  }
  layout.small_files.erase("config.json");
  layout.config_text = side_file(fs::path(kModelFolderName) / "config.json");
  layout.sharded = manifest_.model().sharded();
  for (const auto& file : manifest_.model().files()) {
    HfFileLayout entry{file.name(), {}, {file.metadata().begin(), file.metadata().end()}};
    for (const auto& tensor : file.tensors()) {
      entry.tensors.push_back(
          {tensor.name(),
           parse_stored_dtype(tensor.dtype()).value(),
           {tensor.shape().begin(), tensor.shape().end()}});
    }
    layout.files.push_back(std::move(entry));
  }
  return layout;
}

void CheckpointReader::compare_with(std::span<const StateDeclaration> expected) const {
  std::vector<std::string> missing;
  std::vector<std::string> different;
  std::vector<std::string> unexpected;
  std::set<std::pair<std::string_view, std::string_view>> names;
  for (const StateDeclaration& state : expected) {
    names.emplace(state.name, state.state);
    const auto* found = find_state(manifest_, state.name, state.state);
    const std::string where = describe_state(state.name, state.state);
    if (found == nullptr) {
      missing.push_back(fmt::format("{} {}", where, format_shape(state.shape)));
      continue;
    }
    const StateDeclaration stored = declaration_of(*found);
    if (stored.shape != state.shape || stored.dtype != state.dtype) {
      different.push_back(fmt::format(
          "{} is {} {}, this run asks for {} {}",
          where,
          name_of(stored.dtype),
          format_shape(stored.shape),
          name_of(state.dtype),
          format_shape(state.shape)));
    }
  }
  for (const auto& tensor : manifest_.tensors()) {
    if (!names.contains({tensor.name(), tensor.state()})) {
      unexpected.push_back(fmt::format(
          "{} {}",
          describe_state(tensor.name(), tensor.state()),
          format_shape(declaration_of(tensor).shape)));
    }
  }
  if (const size_t all = missing.size() + different.size() + unexpected.size(); all > 0) {
    throw UserError(
        "{}: the checkpoint does not hold the states of this run, which is of another model, "
        "optimizer or precision; {} differ{}{}{}",
        folder_.string(),
        all,
        first_few("missing", missing),
        first_few("different", different),
        first_few("unexpected", unexpected));
  }
}

void CheckpointReader::read(
    std::string_view tensor,
    std::string_view state,
    int64_t begin,
    int64_t end,
    std::span<std::byte> destination) const {
  const auto* found = find_state(manifest_, tensor, state);
  check(found != nullptr, "{} has no {}", folder_.string(), describe_state(tensor, state));
  const int64_t width = element_bytes(*found);
  check(
      0 <= begin && begin <= end && end <= declaration_of(*found).elements() &&
          destination.size() == static_cast<size_t>((end - begin) * width),
      "{}: elements {} to {} into {} bytes",
      describe_state(tensor, state),
      begin,
      end,
      destination.size());
  for (const auto& piece : found->pieces()) {
    const int64_t from = std::max(begin, piece.begin());
    const int64_t to = std::min(end, piece.begin() + piece.count());
    if (from < to) {
      read_piece(
          *found,
          piece,
          (from - piece.begin()) * width,
          destination.subspan(
              static_cast<size_t>((from - begin) * width),
              static_cast<size_t>((to - from) * width)));
    }
  }
}

void CheckpointReader::read_piece(
    const CheckpointManifest::Tensor& tensor,
    const CheckpointManifest::Piece& piece,
    int64_t begin,
    std::span<std::byte> destination) const {
  const fs::path path = folder_ / piece.file();
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    throw EnvironmentError(
        "cannot read {}: {}", path.string(), std::generic_category().message(errno));
  }
  const int64_t end = begin + static_cast<int64_t>(destination.size());
  std::vector<std::byte> whole; // of a block that is wanted in part
  for (int64_t block = begin / kChecksumBlock; block * kChecksumBlock < end; ++block) {
    const int64_t first = block * kChecksumBlock;
    const int64_t last = std::min(first + kChecksumBlock, piece.bytes());
    const int64_t from = std::max(first, begin);
    const int64_t to = std::min(last, end);
    const std::span wanted =
        destination.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from));
    std::span<std::byte> bytes = wanted;
    if (to - from < last - first) {
      whole.resize(static_cast<size_t>(last - first));
      bytes = whole;
    }
    read_at(file, path, piece.offset() + first, bytes);
    if (checksum(bytes) != piece.checksums(static_cast<int>(block))) {
      const int64_t width = element_bytes(tensor);
      throw UserError(
          "{}: elements {} to {} of {} do not match their checksum; the file is damaged, use "
          "another checkpoint",
          path.string(),
          piece.begin() + first / width,
          piece.begin() + last / width,
          describe_state(tensor.name(), tensor.state()));
    }
    if (bytes.data() != wanted.data()) {
      std::memcpy(wanted.data(), bytes.data() + (from - first), wanted.size());
    }
  }
}

void CheckpointReader::verify() const {
  constexpr int64_t kPart = 16 * kChecksumBlock;
  std::vector<std::byte> buffer;
  for (const auto& tensor : manifest_.tensors()) {
    for (const auto& piece : tensor.pieces()) {
      for (int64_t begin = 0; begin < piece.bytes(); begin += kPart) {
        buffer.resize(static_cast<size_t>(std::min(kPart, piece.bytes() - begin)));
        read_piece(tensor, piece, begin, buffer);
      }
    }
  }
  for (const auto& side : manifest_.side_files()) {
    side_file(side.name());
  }
}

} // namespace palimpsest
