#include <palimpsest/core/data/text_bytes.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/records/mapped_data.h>

#include <algorithm>

namespace palimpsest {

TextBytes::TextBytes(
    const std::vector<std::filesystem::path>& paths,
    int64_t sequence_length,
    int64_t vocabulary_size,
    Notes& notes)
    : sequence_length_(sequence_length) {
  check(!paths.empty(), "text of no file");
  check_sequence_length(sequence_length);
  if (vocabulary_size < 256) {
    throw UserError(
        "data.format: text is read as bytes, ids 0 to 255, but the model's vocabulary has {} ids; "
        "give a model with at least 256 or tokenize the text",
        vocabulary_size);
  }
  int64_t bytes = 0;
  for (const std::filesystem::path& path : paths) {
    files_.push_back(open_data_file(path));
    bytes += static_cast<int64_t>(files_.back().bytes().size());
    ends_.push_back(bytes);
  }
  if (bytes < sequence_length_) {
    throw UserError(
        "data.sequence_length: {} is longer than the {} bytes of text ({}{})",
        sequence_length_,
        bytes,
        paths.front().string(),
        paths.size() > 1 ? " and others" : "");
  }
  if (const int64_t rest = bytes % sequence_length_; rest > 0) {
    notes.push_back(fmt::format(
        "{}: the last {} of {} bytes of text fill no row of {} and are left out",
        paths.back().string(),
        rest,
        bytes,
        sequence_length_));
  }
}

void TextBytes::read(int64_t sample, void* inputs, void* labels) const {
  check(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  auto* ids = static_cast<int64_t*>(inputs);
  int64_t position = sample * sequence_length_;
  const int64_t end = position + sequence_length_;
  auto file =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), position) - ends_.begin());
  for (int64_t* next = ids; position < end; ++file) {
    const int64_t start = file == 0 ? 0 : ends_[file - 1];
    const int64_t stop = std::min(end, ends_[file]);
    const auto part = files_[file].bytes().subspan(
        static_cast<size_t>(position - start), static_cast<size_t>(stop - position));
    next = std::ranges::transform(part, next, [](std::byte byte) {
             return std::to_integer<int64_t>(byte);
           }).out;
    release_around(files_[file], part);
    position = stop;
  }
  shift_labels({ids, static_cast<size_t>(sequence_length_)}, static_cast<int64_t*>(labels));
}

} // namespace palimpsest
