#include <palimpsest/core/base/crc32c.h>

#include <array>

namespace palimpsest {
namespace {

/// The check of each byte by itself.
constexpr std::array<uint32_t, 256> kTable = [] {
  constexpr uint32_t kReflected = 0x82f63b78; // the polynomial, lowest power first
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) {
      rest = (rest >> 1) ^ ((rest & 1) != 0 ? kReflected : 0);
    }
    table[byte] = rest;
  }
  return table;
}();

} // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t check = ~uint32_t{0};
  for (const std::byte byte : bytes) {
    check = (check >> 8) ^ kTable[(check ^ std::to_integer<uint32_t>(byte)) & 0xff];
  }
  return ~check;
}

} // namespace palimpsest
