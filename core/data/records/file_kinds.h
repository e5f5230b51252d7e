#pragma once

// What the first bytes of a data file say: formats that are refused with the command that converts
// them.

#include <palimpsest/core/base/files.h>

#include <cstddef>

namespace palimpsest {

/// DataFileError for Parquet, Arrow, compressed files and UTF-16, naming the conversion.
void refuse_other_formats(const MappedFile& file);

/// Bytes of the UTF-8 byte order mark at the file's start: 3 or 0.
size_t byte_order_mark(const MappedFile& file);

} // namespace palimpsest
