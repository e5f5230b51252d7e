#include <palimpsest/core/data/records/text_chunks.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/records/data_file_error.h>
#include <palimpsest/core/data/records/file_kinds.h>
#include <palimpsest/core/data/records/json_spans.h>
#include <palimpsest/core/data/records/mapped_data.h>
#include <palimpsest/core/data/tokenizer/utf8.h>

#include <algorithm>

namespace palimpsest {

namespace {

/// The largest position up to `at` that is no middle of a character.
size_t character_at(std::string_view text, size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) {
    --at;
  }
  return at;
}

} // namespace

TextChunks::TextChunks(const std::filesystem::path& path, const LastCut& last_cut)
    : file_(open_data_file(path)) {
  refuse_other_formats(file_);
  check_utf8();
  size_t begin = byte_order_mark(file_);
  while (begin < text().size()) {
    begins_.push_back(static_cast<int64_t>(begin));
    begin = end_of_chunk(begin, last_cut);
    if (begins_.size() > 1) {
      release(size() - 1);
    }
  }
  if (begins_.empty()) {
    throw DataFileError("{} is empty", path.string());
  }
  begins_.push_back(std::ssize(text()));
}

std::string_view TextChunks::text() const {
  return {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()};
}

void TextChunks::check_utf8() const {
  constexpr size_t kPart = size_t{4} << 20;
  for (size_t begin = 0; begin < text().size();) {
    const size_t end = character_at(text(), std::min(text().size(), begin + kPart));
    const std::string_view part = text().substr(begin, std::max<size_t>(end - begin, 1));
    if (const auto bad = invalid_utf8(part)) {
      const auto byte = static_cast<int64_t>(begin + *bad);
      throw UserError(
          "{}:{}: byte {} of the file is no UTF-8; convert the file to UTF-8",
          file_.path().string(),
          line_of(file_, byte),
          byte + 1);
    }
    file_.forget(std::as_bytes(std::span(part)));
    begin += part.size();
  }
}

size_t TextChunks::end_of_chunk(size_t begin, const LastCut& last_cut) {
  for (size_t size = kChunk; begin + size < text().size(); size *= 2) {
    const auto cut = last_cut(text().substr(begin, size));
    if (cut && *cut > 0) {
      return begin + *cut;
    }
    if (size >= kLargest) {
      ++forced_cuts_;
      return character_at(text(), begin + size);
    }
  }
  return text().size();
}

std::string_view TextChunks::chunk(int64_t index) const {
  check(index >= 0 && index < size(), "chunk {} of {}", index, size());
  const auto i = static_cast<size_t>(index);
  return text().substr(
      static_cast<size_t>(begins_[i]), static_cast<size_t>(begins_[i + 1] - begins_[i]));
}

void TextChunks::release(int64_t index) const {
  release_around(file_, std::as_bytes(std::span(chunk(index))));
}

} // namespace palimpsest
