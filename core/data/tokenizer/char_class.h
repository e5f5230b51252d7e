#pragma once

// Classes of characters, as the regular expressions of tokenizers tell them apart.
//
//   char_class(U'é') == CharClass::kLetter;

#include <array>
#include <cstdint>

namespace palimpsest {

enum class CharClass : uint8_t {
  kOther,
  kLetter, ///< \p{L}
  kNumber, ///< \p{N}
  kSpace, ///< \s: Unicode's White_Space
};

/// Of a character beyond ASCII.
CharClass unicode_class(uint32_t code);

inline constexpr std::array<CharClass, 128> kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (uint32_t code = 0; code < 128; ++code) {
    const uint32_t lower = code | 0x20U;
    if (lower >= 'a' && lower <= 'z') {
      classes[code] = CharClass::kLetter;
    } else if (code >= '0' && code <= '9') {
      classes[code] = CharClass::kNumber;
    } else if (code == ' ' || (code >= '\t' && code <= '\r')) {
      classes[code] = CharClass::kSpace;
    }
  }
  return classes;
}();

inline CharClass char_class(uint32_t code) {
  return code < 128 ? kAsciiClasses[code] : unicode_class(code);
}

/// \w of Unicode's regular expressions: letters, marks, decimal digits, letter numbers, connectors,
/// joiners.
bool is_word_character(uint32_t code);

} // namespace palimpsest
