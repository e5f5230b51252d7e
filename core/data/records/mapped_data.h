#pragma once

// What the openers of data files share.
//
//   const MappedFile file = open_data_file(path);
//   scan(file, [&](std::span<const std::byte> part, size_t offset) { ... });

#include <palimpsest/core/base/files.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace palimpsest {

/// Maps a data file. DataFileError where it is missing, no regular file or empty.
MappedFile open_data_file(const std::filesystem::path& path);

/// Calls `visit` with consecutive parts of the file, whose sizes are multiples of 8 but for the
/// last, and lets each go afterwards: a scan of a large file does not stay in the process' memory.
void scan(
    const MappedFile& file,
    const std::function<void(std::span<const std::byte> part, size_t offset)>& visit);

/// Lets go of `part` of the file and of the pages that were mapped along with it.
void release_around(const MappedFile& file, std::span<const std::byte> part);

/// labels[t] = ids[t + 1]; the last one is no target.
void shift_labels(std::span<const int64_t> ids, int64_t* labels);

/// UserError unless a row of this length has a target.
void check_sequence_length(int64_t sequence_length);

} // namespace palimpsest
