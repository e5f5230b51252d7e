#include <palimpsest/core/data/tokenizer/utf8.h>

#include <palimpsest/core/base/error.h>

#include <cstring>

namespace palimpsest {

namespace {

/// What the bytes from some place on begin with.
struct Piece {
  enum class Kind { kCharacter, kBroken, kUnfinished };
  Kind kind = Kind::kCharacter;
  size_t size = 1; ///< bytes of the character, or of its broken or unfinished beginning
};

/// Which second bytes a lead byte allows, and how long its characters are; size 0: no lead byte.
struct Lead {
  size_t size = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) {
    return {.size = 1};
  } else if (byte >= 0xc2 && byte <= 0xdf) {
    return {.size = 2};
  } else if (byte >= 0xe0 && byte <= 0xef) {
    return {
        .size = 3,
        .low = uint8_t(byte == 0xe0 ? 0xa0 : 0x80),
        .high = uint8_t(byte == 0xed ? 0x9f : 0xbf)};
  } else if (byte >= 0xf0 && byte <= 0xf4) {
    return {
        .size = 4,
        .low = uint8_t(byte == 0xf0 ? 0x90 : 0x80),
        .high = uint8_t(byte == 0xf4 ? 0x8f : 0xbf)};
  }
  return {};
}

Piece piece_at(std::string_view text, size_t at) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[at]));
  if (lead.size == 0) {
    return {Piece::Kind::kBroken, 1};
  }
  for (size_t k = 1; k < lead.size; ++k) {
    if (at + k == text.size()) {
      return {Piece::Kind::kUnfinished, k};
    }
    const auto byte = static_cast<uint8_t>(text[at + k]);
    const bool fits = k == 1 ? byte >= lead.low && byte <= lead.high : (byte & 0xc0U) == 0x80U;
    if (!fits) {
      return {Piece::Kind::kBroken, k};
    }
  }
  return {Piece::Kind::kCharacter, lead.size};
}

/// How many bytes from `at` on are surely ASCII: a multiple of 8.
size_t ascii_run(std::string_view text, size_t at) {
  const size_t begin = at;
  for (uint64_t word = 0; at + sizeof word <= text.size(); at += sizeof word) {
    std::memcpy(&word, text.data() + at, sizeof word);
    if ((word & 0x8080808080808080U) != 0) {
      break;
    }
  }
  return at - begin;
}

} // namespace

void append_utf8(uint32_t code, std::string& text) {
  const auto tail = [&](int shift) {
    text.push_back(static_cast<char>(0x80U | (code >> shift & 0x3fU)));
  };
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    text.push_back(static_cast<char>(0xc0U | code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    text.push_back(static_cast<char>(0xe0U | code >> 12));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xf0U | code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::optional<size_t> invalid_utf8(std::string_view text) {
  for (size_t at = 0;;) {
    at += ascii_run(text, at);
    if (at == text.size()) {
      return std::nullopt;
    }
    const Piece piece = piece_at(text, at);
    if (piece.kind != Piece::Kind::kCharacter) {
      return at;
    }
    at += piece.size;
  }
}

void require_utf8(std::string_view text) {
  if (const std::optional<size_t> at = invalid_utf8(text)) {
    throw UserError(
        "byte {} (0x{:02X}) is no UTF-8; convert the text to UTF-8",
        *at + 1,
        static_cast<uint8_t>(text[*at]));
  }
}

void take_characters(std::string& bytes, bool last, std::string& text) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Piece piece = piece_at(bytes, at);
    if (piece.kind == Piece::Kind::kUnfinished && !last) {
      break;
    }
    if (piece.kind == Piece::Kind::kCharacter) {
      text.append(bytes, at, piece.size);
    } else {
      text += kReplacementCharacter;
    }
    at += piece.size;
  }
  bytes.erase(0, at);
}

} // namespace palimpsest
