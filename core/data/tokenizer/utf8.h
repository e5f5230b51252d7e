#pragma once

// UTF-8: characters out of bytes and back, and what stands for bytes that are none.
//
//   for (size_t at = 0; at < text.size();) {
//     const Utf8Char next = utf8_at(text, at);      // of valid text
//     at += next.size;
//   }

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace palimpsest {

/// Stands for bytes that are no character: U+FFFD.
inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

struct Utf8Char {
  uint32_t code = 0; ///< code point
  uint32_t size = 0; ///< bytes
};

/// The character at byte `at` of valid UTF-8; `at` lies on a character.
inline Utf8Char utf8_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t k) { return static_cast<uint8_t>(text[at + k]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1};
  } else if (lead < 0xe0) {
    return {(lead & 0x1fU) << 6 | (byte(1) & 0x3fU), 2};
  } else if (lead < 0xf0) {
    return {(lead & 0x0fU) << 12 | (byte(1) & 0x3fU) << 6 | (byte(2) & 0x3fU), 3};
  }
  return {
      (lead & 0x07U) << 18 | (byte(1) & 0x3fU) << 12 | (byte(2) & 0x3fU) << 6 | (byte(3) & 0x3fU),
      4};
}

/// Where the character before byte `at` begins; `at` > 0 lies on a character or the end.
inline size_t utf8_before(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xc0U) == 0x80U);
  return at;
}

/// Appends a code point.
void append_utf8(uint32_t code, std::string& text);

/// The first byte at which the text is no UTF-8 (surrogates and overlong forms are none); empty
/// where all of it is.
std::optional<size_t> invalid_utf8(std::string_view text);

/// UserError naming that byte, counted from 1, where there is one.
void require_utf8(std::string_view text);

/// Moves what is decided from the front of `bytes` to the end of `text`: characters as they are,
/// and the replacement character for each longest run of bytes that begins a character without
/// completing it, or that none begins with (the practice that the Unicode standard recommends, and
/// Rust's from_utf8_lossy). What may still become a character stays, unless `last`.
void take_characters(std::string& bytes, bool last, std::string& text);

} // namespace palimpsest
