#include <palimpsest/core/data/tokenizer/byte_alphabet.h>

#include <palimpsest/core/data/tokenizer/utf8.h>

namespace palimpsest {

namespace {

constexpr uint32_t kFirstStandIn = 0x100;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

constexpr std::array<uint32_t, 256> kCharacters = [] {
  std::array<uint32_t, 256> characters{};
  uint32_t next = kFirstStandIn;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    characters[byte] = stands_for_itself(byte) ? byte : next++;
  }
  return characters;
}();

constexpr uint32_t kCharactersEnd = 0x144;
constexpr int16_t kNoByte = -1;

constexpr std::array<int16_t, kCharactersEnd> kBytes = [] {
  std::array<int16_t, kCharactersEnd> bytes{};
  bytes.fill(kNoByte);
  for (size_t byte = 0; byte < 256; ++byte) {
    bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  }
  return bytes;
}();

} // namespace

std::array<uint32_t, 256> byte_characters() {
  return kCharacters;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Utf8Char next = utf8_at(token, at);
    if (next.code >= kCharactersEnd || kBytes[next.code] == kNoByte) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kBytes[next.code]));
    at += next.size;
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) {
    append_utf8(kCharacters[static_cast<uint8_t>(byte)], token);
  }
  return token;
}

} // namespace palimpsest
