#pragma once

// Where the records of a JSON file lie, found without parsing them.
//
//   const std::vector<ByteSpan> lines = line_spans(file, /*begin=*/0);

#include <palimpsest/core/data/records/record_file.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace palimpsest {

/// The lines from `begin` on that are not blank, without their ends.
std::vector<ByteSpan> line_spans(const MappedFile& file, int64_t begin);

/// The elements of the array that begins at byte `begin`, without the space around them. What lies
/// between two commas is one element, whatever it holds. UserError with the line where the array
/// ends too early or too late, or an element is missing.
std::vector<ByteSpan> array_spans(const MappedFile& file, int64_t begin);

/// Bytes of the first JSON object or array in `text`, up to its closing bracket; nothing where it is
/// not closed or something else comes first.
std::optional<size_t> first_value_size(std::string_view text);

/// The line, from 1, of a byte.
int64_t line_of(const MappedFile& file, int64_t byte);

} // namespace palimpsest
