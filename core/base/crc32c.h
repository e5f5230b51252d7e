#pragma once

// CRC-32C, the checksum of iSCSI, ext4 and TensorBoard's files.
//
//   crc32c(std::as_bytes(std::span(std::string_view("123456789"))));   // 0xe3069283

#include <cstddef>
#include <cstdint>
#include <span>

namespace palimpsest {

/// The cyclic redundancy check with Castagnoli's polynomial 0x1edc6f41, bits reflected, begun with
/// and inverted by all ones (RFC 3720, section 12.1 and appendix B.4).
uint32_t crc32c(std::span<const std::byte> bytes);

} // namespace palimpsest
