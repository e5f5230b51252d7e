#include <palimpsest/core/data/records/mapped_data.h>

#include <palimpsest/core/base/labels.h>
#include <palimpsest/core/data/records/data_file_error.h>

#include <algorithm>

namespace palimpsest {

namespace {

constexpr size_t kScanPart = size_t{4} << 20;
// A page fault of a mapping brings in 64 KiB around it on most file systems, and up to a huge page
// where files lie in memory.
constexpr size_t kFaultAround = size_t{2} << 20;

} // namespace

MappedFile open_data_file(const std::filesystem::path& path) {
  try {
    MappedFile file(path);
    if (file.bytes().empty()) {
      throw UserError("{} is empty", path.string());
    }
    return file;
  } catch (const UserError& error) {
    throw DataFileError("{}", error.what());
  }
}

void scan(
    const MappedFile& file,
    const std::function<void(std::span<const std::byte> part, size_t offset)>& visit) {
  const std::span<const std::byte> bytes = file.bytes();
  for (size_t offset = 0; offset < bytes.size(); offset += kScanPart) {
    const auto part = bytes.subspan(offset, std::min(kScanPart, bytes.size() - offset));
    visit(part, offset);
    file.forget(part);
  }
}

void release_around(const MappedFile& file, std::span<const std::byte> part) {
  const std::span<const std::byte> bytes = file.bytes();
  const auto offset = static_cast<size_t>(part.data() - bytes.data());
  const size_t begin = offset / kFaultAround * kFaultAround;
  const size_t end =
      std::min(bytes.size(), (offset + part.size() + kFaultAround) / kFaultAround * kFaultAround);
  file.forget(bytes.subspan(begin, end - begin));
}

void shift_labels(std::span<const int64_t> ids, int64_t* labels) {
  std::copy(ids.begin() + 1, ids.end(), labels);
  labels[ids.size() - 1] = kIgnoredLabel;
}

void check_sequence_length(int64_t sequence_length) {
  if (sequence_length < 2) {
    throw UserError(
        "data.sequence_length: {} leaves no token to predict; give at least 2", sequence_length);
  }
}

} // namespace palimpsest
