#pragma once

// A plain text file in pieces that can be tokenized one by one.
//
//   const TextChunks text("book.txt");
//   text.chunk(0);     // some 4 KiB, up to the start of a line
//
// A piece ends where a line begins with something visible, so that the pieces' tokens are those of
// the whole text for every pre-tokenizer that never joins a line end with what follows it. Only a
// line beyond 64 KiB is cut inside: before a space between words, or, beyond 128 KiB, anywhere
// between characters.

#include <palimpsest/core/base/files.h>

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace palimpsest {

class TextChunks {
 public:
  static constexpr int64_t kChunk = int64_t{4} << 10;
  static constexpr int64_t kLongLine = int64_t{64} << 10;

  /// Reads the file once. UserError naming the path: missing, empty, another format (see
  /// file_kinds.h), bytes that are no UTF-8 (with their line). A byte order mark is skipped.
  explicit TextChunks(const std::filesystem::path& path);

  int64_t size() const {
    return std::ssize(begins_) - 1;
  }
  const std::filesystem::path& path() const {
    return file_.path();
  }
  /// Valid as long as the object.
  std::string_view chunk(int64_t index) const;
  /// Gives the chunk's pages back.
  void release(int64_t index) const;

 private:
  MappedFile file_;
  std::vector<int64_t> begins_; // and the file's end
};

} // namespace palimpsest
