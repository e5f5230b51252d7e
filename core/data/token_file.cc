#include <palimpsest/core/data/token_file.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/records/data_file_error.h>
#include <palimpsest/core/data/records/mapped_data.h>

#include <algorithm>
#include <bit>

namespace palimpsest {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr int64_t kUint16Ids = 65536;

template <typename Id>
std::span<const Id> as_ids(std::span<const std::byte> bytes) {
  // Parts begin at multiples of 8 of a mapping, which begins at a page.
  return {reinterpret_cast<const Id*>(bytes.data()), bytes.size() / sizeof(Id)};
}

/// Largest values at even and at odd positions of the file's uint16: of uint32 ids, their low and
/// high halves.
struct Halves {
  uint16_t even = 0;
  uint16_t odd = 0;
};

Halves largest_halves(const MappedFile& file) {
  Halves largest;
  scan(file, [&](std::span<const std::byte> part, size_t /*offset*/) {
    const auto ids = as_ids<uint16_t>(part);
    Halves here; // a local: the loop below is vectorised
    for (size_t i = 0; i + 1 < ids.size(); i += 2) {
      here.even = std::max(here.even, ids[i]);
      here.odd = std::max(here.odd, ids[i + 1]);
    }
    if (ids.size() % 2 == 1) {
      here.even = std::max(here.even, ids.back());
    }
    largest = {std::max(largest.even, here.even), std::max(largest.odd, here.odd)};
  });
  return largest;
}

template <typename Id>
void check_ids(const MappedFile& file, int64_t vocabulary_size) {
  scan(file, [&](std::span<const std::byte> part, size_t offset) {
    const auto ids = as_ids<Id>(part);
    Id largest = 0;
    for (const Id id : ids) {
      largest = std::max(largest, id);
    }
    if (int64_t{largest} < vocabulary_size) {
      return;
    }
    const auto bad =
        std::find_if(ids.begin(), ids.end(), [&](Id id) { return int64_t{id} >= vocabulary_size; });
    throw DataFileError(
        "{}: token {} at position {} (read as uint{}) is beyond the model's vocabulary of {} ids; "
        "use the tokenizer that belongs to the model",
        file.path().string(),
        *bad,
        offset / sizeof(Id) + static_cast<size_t>(bad - ids.begin()),
        8 * sizeof(Id),
        vocabulary_size);
  });
}

template <typename Id>
void copy_ids(std::span<const std::byte> row, int64_t* ids) {
  std::ranges::copy(as_ids<Id>(row), ids);
}

} // namespace

TokenFile::TokenFile(
    const std::filesystem::path& path,
    int64_t sequence_length,
    int64_t vocabulary_size,
    Notes& notes)
    : file_(open_data_file(path)), sequence_length_(sequence_length) {
  check_sequence_length(sequence_length);
  check(vocabulary_size > 0, "a vocabulary of {} ids", vocabulary_size);
  const auto bytes = static_cast<int64_t>(file_.bytes().size());
  const std::string name = path.string();
  if (vocabulary_size > kUint16Ids) {
    id_bytes_ = 4;
  } else if (bytes % 4 == 0) {
    const Halves largest = largest_halves(file_);
    if (largest.odd == 0 && largest.even > 0) {
      id_bytes_ = 4;
      notes.push_back(name + " is read as uint32: every second uint16 in it is 0");
    }
  }
  if (bytes % id_bytes_ != 0) {
    throw DataFileError(
        "{} has {} bytes, no multiple of the {} bytes of a uint{} token; the file is cut off or no "
        "token file",
        name,
        bytes,
        id_bytes_,
        8 * id_bytes_);
  }
  id_bytes_ == 2 ? check_ids<uint16_t>(file_, vocabulary_size)
                 : check_ids<uint32_t>(file_, vocabulary_size);
  const int64_t tokens = bytes / id_bytes_;
  rows_ = tokens / sequence_length_;
  if (rows_ == 0) {
    throw UserError(
        "data.sequence_length: {} is longer than the {} tokens of {}",
        sequence_length_,
        tokens,
        name);
  }
  if (const int64_t rest = tokens % sequence_length_; rest > 0) {
    notes.push_back(fmt::format(
        "{}: the last {} of {} tokens fill no row of {} and are left out",
        name,
        rest,
        tokens,
        sequence_length_));
  }
}

void TokenFile::read(int64_t sample, void* inputs, void* labels) const {
  check(sample >= 0 && sample < rows_, "sample {} of {}", sample, rows_);
  const auto row_bytes = static_cast<size_t>(sequence_length_ * id_bytes_);
  const auto row = file_.bytes().subspan(static_cast<size_t>(sample) * row_bytes, row_bytes);
  auto* ids = static_cast<int64_t*>(inputs);
  id_bytes_ == 2 ? copy_ids<uint16_t>(row, ids) : copy_ids<uint32_t>(row, ids);
  release_around(file_, row);
  shift_labels({ids, static_cast<size_t>(sequence_length_)}, static_cast<int64_t*>(labels));
}

} // namespace palimpsest
