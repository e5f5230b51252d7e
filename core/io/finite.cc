#include <palimpsest/core/io/finite.h>

#include <cstdint>
#include <cstring>

namespace palimpsest {
namespace {

/// Whether an element's exponent is all ones: NaN or infinity.
template <typename Bits>
bool any_not_finite(std::span<const std::byte> bytes, Bits exponent) {
  bool found = false;
  for (size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + at, sizeof(bits));
    found |= (bits & exponent) == exponent;
  }
  return found;
}

} // namespace

bool any_not_finite(std::span<const std::byte> bytes, StoredDtype dtype) {
  switch (dtype) {
    case StoredDtype::F32:
      return any_not_finite<uint32_t>(bytes, 0x7F800000U);
    case StoredDtype::BF16:
      return any_not_finite<uint16_t>(bytes, uint16_t{0x7F80});
    case StoredDtype::F16:
      return any_not_finite<uint16_t>(bytes, uint16_t{0x7C00});
    case StoredDtype::F64:
      return any_not_finite<uint64_t>(bytes, 0x7FF0000000000000U);
    default:
      return false;
  }
}

} // namespace palimpsest
