#pragma once

// Whether bytes are text.

#include <cstddef>
#include <optional>
#include <string_view>

namespace palimpsest {

/// Where the first byte stands that begins no well-formed UTF-8 character (The Unicode Standard,
/// table 3-7: no overlong form, no surrogate, nothing beyond U+10FFFF); nothing where all is well.
std::optional<size_t> first_invalid_utf8(std::string_view bytes);

} // namespace palimpsest
