#include <palimpsest/core/data/records/utf8.h>

namespace palimpsest {

namespace {

/// Bytes of the well-formed character at the start of `bytes`, 0 where there is none.
size_t character_size(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) {
    return 1;
  }
  const size_t size = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (size == 0 || bytes.size() < size) {
    return 0;
  }
  const unsigned char least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (at(1) < least || at(1) > most) {
    return 0;
  }
  for (size_t i = 2; i < size; ++i) {
    if (at(i) < 0x80 || at(i) > 0xBF) {
      return 0;
    }
  }
  return size;
}

} // namespace

std::optional<size_t> first_invalid_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const size_t size = character_size(bytes.substr(i));
    if (size == 0) {
      return i;
    }
    i += size;
  }
  return std::nullopt;
}

} // namespace palimpsest
