#include <palimpsest/core/data/records/text_chunks.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/records/file_kinds.h>
#include <palimpsest/core/data/records/json_spans.h>
#include <palimpsest/core/data/records/mapped_data.h>
#include <palimpsest/core/data/records/utf8.h>

namespace palimpsest {

namespace {

bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

/// Whether a chunk of so many bytes may end between these two characters.
bool may_end(int64_t size, char last, char next) {
  if (size >= TextChunks::kChunk && last == '\n' && !is_blank(next)) {
    return true;
  }
  if (size >= TextChunks::kLongLine && !is_blank(last) && next == ' ') {
    return true;
  }
  const bool continues = (static_cast<unsigned char>(next) & 0xC0) == 0x80;
  return size >= 2 * TextChunks::kLongLine && !continues;
}

} // namespace

TextChunks::TextChunks(const std::filesystem::path& path) : file_(open_data_file(path)) {
  refuse_other_formats(file_);
  begins_.push_back(static_cast<int64_t>(byte_order_mark(file_)));
  char last = 0;
  scan(file_, [&](std::span<const std::byte> part, size_t offset) {
    auto byte = static_cast<int64_t>(offset);
    for (const std::byte value : part) {
      const char next = static_cast<char>(value);
      if (may_end(byte - begins_.back(), last, next)) {
        begins_.push_back(byte);
      }
      last = next;
      ++byte;
    }
  });
  begins_.push_back(std::ssize(file_.bytes()));
  for (int64_t i = 0; i < size(); ++i) {
    if (const auto bad = first_invalid_utf8(chunk(i))) {
      const int64_t byte = begins_[static_cast<size_t>(i)] + static_cast<int64_t>(*bad);
      throw UserError(
          "{}:{}: byte {} of the file is no UTF-8; convert the file to UTF-8",
          path.string(),
          line_of(file_, byte),
          byte + 1);
    }
    release(i);
  }
}

std::string_view TextChunks::chunk(int64_t index) const {
  check(index >= 0 && index < size(), "chunk {} of {}", index, size());
  const auto i = static_cast<size_t>(index);
  return {
      reinterpret_cast<const char*>(file_.bytes().data()) + begins_[i],
      static_cast<size_t>(begins_[i + 1] - begins_[i])};
}

void TextChunks::release(int64_t index) const {
  release_around(file_, std::as_bytes(std::span(chunk(index))));
}

} // namespace palimpsest
