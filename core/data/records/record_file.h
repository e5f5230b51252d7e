#pragma once

// The records of a JSON file: one object a line (JSONL), or the elements of one array.
//
//   const RecordFile file("chat.jsonl");
//   for (int64_t i = 0; i < file.size(); ++i) {
//     const std::string prompt = file.located(i, [&] { return prompt_of(file.read(i)); });
//   }
//
// Opening reads the file once for the records' places, 16 bytes each; a record is parsed when it is
// read, so a file may be larger than memory. A byte order mark, CRLF, blank lines and a missing
// last newline are fine in JSONL.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace palimpsest {

/// Bytes [begin, end) of a file.
struct ByteSpan {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const ByteSpan&) const = default;
};

class RecordFile {
 public:
  /// DataFileError: missing, empty, of no record, Parquet, compressed or UTF-16 (with the command
  /// that converts it). UserError with the place: an array that is not closed or lacks an element.
  explicit RecordFile(const std::filesystem::path& path);

  int64_t size() const {
    return std::ssize(spans_);
  }
  const std::filesystem::path& path() const {
    return file_.path();
  }
  /// The object. UserError where the text is none, with what is likely wrong: two values on a line,
  /// an object over several lines, bytes that are no UTF-8, a key twice. May be called from several
  /// threads.
  nlohmann::json read(int64_t record) const;
  /// "chat.jsonl:17". Counts the lines before the record: for messages only.
  std::string location(int64_t record) const;
  /// What `use` returns; a UserError from it gets the record's location in front.
  template <typename Use>
  auto located(int64_t record, Use use) const {
    try {
      return use();
    } catch (const UserError& error) {
      throw UserError("{}: {}", location(record), error.what());
    }
  }

 private:
  std::string_view text(int64_t record) const;

  MappedFile file_;
  std::vector<ByteSpan> spans_;
};

} // namespace palimpsest
