#include <palimpsest/core/data/records/record_file.h>

#include <palimpsest/core/data/records/data_file_error.h>
#include <palimpsest/core/data/records/file_kinds.h>
#include <palimpsest/core/data/records/json_spans.h>
#include <palimpsest/core/data/records/mapped_data.h>
#include <palimpsest/core/data/tokenizer/utf8.h>
#include <palimpsest/core/io/json.h>

#include <algorithm>

namespace palimpsest {

RecordFile::RecordFile(const std::filesystem::path& path) : file_(open_data_file(path)) {
  refuse_other_formats(file_);
  const auto begin = static_cast<int64_t>(byte_order_mark(file_));
  const std::string_view bytes(
      reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size());
  const size_t first = bytes.find_first_not_of(" \t\r\n", static_cast<size_t>(begin));
  if (first != bytes.npos && bytes[first] == '[') {
    spans_ = array_spans(file_, static_cast<int64_t>(first));
  } else {
    spans_ = line_spans(file_, begin);
  }
  if (spans_.empty()) {
    throw DataFileError("{} holds no record", path.string());
  }
}

std::string_view RecordFile::text(int64_t record) const {
  check(record >= 0 && record < size(), "record {} of {}", record, size());
  const ByteSpan span = spans_[static_cast<size_t>(record)];
  return {
      reinterpret_cast<const char*>(file_.bytes().data()) + span.begin,
      static_cast<size_t>(span.end - span.begin)};
}

nlohmann::json RecordFile::read(int64_t record) const {
  const std::string_view json = text(record);
  nlohmann::json value;
  try {
    value = parse_json(json, "the record");
  } catch (const UserError&) {
    if (const auto bad = invalid_utf8(json)) {
      throw UserError("byte {} of the record is no UTF-8; convert the file to UTF-8", *bad + 1);
    }
    const auto first = first_value_size(json);
    if (first && *first < json.size()) {
      throw UserError(
          "more follows the first JSON value; put each record on a line of its own, or all in one "
          "array with commas between them");
    }
    if (!first && (json.front() == '{' || json.front() == '[')) {
      throw UserError(
          "the JSON value does not end on its line; write each record on one line, or all in one "
          "array");
    }
    throw;
  }
  release_around(file_, std::as_bytes(std::span(json)));
  if (!value.is_object()) {
    throw UserError("a record is a JSON object, not {}", quote(json));
  }
  return value;
}

std::string RecordFile::location(int64_t record) const {
  const int64_t byte = spans_[static_cast<size_t>(record)].begin;
  return fmt::format("{}:{}", file_.path().string(), line_of(file_, byte));
}

} // namespace palimpsest
