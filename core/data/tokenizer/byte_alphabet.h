#pragma once

// GPT-2's alphabet: one printable character for each byte, in which byte-level vocabularies are
// written ("Ġ" is a space).
//
//   byte_characters()[0x20];          // U+0120
//   bytes_of_token("Ġa");             // " a"
//   token_of_bytes(" a");             // "Ġa"
//
// Source: encoder.py of the GPT-2 release.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace palimpsest {

/// The code point that stands for each byte: itself where it is printable, else one from U+0100 on.
std::array<uint32_t, 256> byte_characters();

/// The bytes that a token of valid UTF-8 is written for; empty where a character of it stands for
/// no byte.
std::optional<std::string> bytes_of_token(std::string_view token);

/// The token of these bytes, in UTF-8.
std::string token_of_bytes(std::string_view bytes);

} // namespace palimpsest
