#pragma once

// Sizes as people write them: 8GiB, 512MiB, 1.5GB, 4096.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace palimpsest {

/// Bytes of "8GiB", "1.5 GB", "4096", "64KiB"; binary (KiB MiB GiB TiB) and decimal (kB KB MB GB
/// TB) units, B optional for plain bytes. Of a fraction of a unit ("13.6GiB") the whole bytes count.
/// Empty where the text is not a size, is negative, is not finite, has no unit and is no whole number
/// or exceeds int64.
std::optional<int64_t> parse_bytes(std::string_view text);

/// What parse_bytes() reads, for messages: "give a size: {}".
inline constexpr std::string_view kSizesAllowed =
    "bytes such as 4096, or with a unit such as 500 MB or 8GiB (kB, MB, GB, TB are powers of 1000; "
    "KiB, MiB, GiB, TiB of 1024)";

/// The shortest exact-enough form for people: "812 B", "3.42 MiB", "1.00 GiB" (three significant
/// digits).
std::string format_bytes(int64_t bytes);

} // namespace palimpsest
