#pragma once

// A plain text file in pieces that can be tokenized one by one.
//
//   const TextChunks text("book.txt", [&](std::string_view part) { return tokenizer.last_cut(part); });
//   text.chunk(0);     // some 4 KiB
//
// Where the text may be cut is the tokenizer's to say, so that the pieces' tokens are those of the
// whole. Only where it allows no cut in 1 MiB the text is cut between two characters.

#include <palimpsest/core/base/files.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace palimpsest {

/// The last byte at which a text that begins so may be cut; nothing where there is none.
using LastCut = std::function<std::optional<size_t>(std::string_view text)>;

class TextChunks {
 public:
  static constexpr size_t kChunk = size_t{4} << 10;
  static constexpr size_t kLargest = size_t{1} << 20;

  /// Reads the file once. UserError naming the path: missing, empty, another format (see
  /// file_kinds.h), bytes that are no UTF-8 (with their line). A byte order mark is skipped.
  TextChunks(const std::filesystem::path& path, const LastCut& last_cut);

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
  /// Cuts that the tokenizer did not allow.
  int64_t forced_cuts() const {
    return forced_cuts_;
  }

 private:
  std::string_view text() const;
  void check_utf8() const;
  size_t end_of_chunk(size_t begin, const LastCut& last_cut);

  MappedFile file_;
  std::vector<int64_t> begins_; // and the file's end
  int64_t forced_cuts_ = 0;
};

} // namespace palimpsest
