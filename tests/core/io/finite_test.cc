#include <palimpsest/core/io/finite.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace palimpsest {
namespace {

/// By IEEE 754 (bfloat16: the upper half of a float).
template <typename Bits>
void expect_found(StoredDtype dtype, Bits largest, Bits infinity) {
  const Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const auto negative = [&](Bits bits) { return static_cast<Bits>(bits | sign); };
  std::vector<Bits> finite = {0, 1, largest, sign, negative(largest)};
  EXPECT_FALSE(any_not_finite(std::as_bytes(std::span(finite)), dtype)) << name_of(dtype);
  const auto quiet_nan = static_cast<Bits>(infinity | infinity >> 1);
  const auto least_nan = static_cast<Bits>(infinity + 1);
  for (const Bits bad : {infinity, negative(infinity), quiet_nan, least_nan, negative(least_nan)}) {
    for (size_t place = 0; place < finite.size(); ++place) {
      std::vector<Bits> values = finite;
      values[place] = bad;
      EXPECT_TRUE(any_not_finite(std::as_bytes(std::span(values)), dtype))
          << name_of(dtype) << ' ' << bad;
    }
  }
}

TEST(Finite, NaNAndInfinityAreFoundAnywhere) {
  expect_found<uint16_t>(StoredDtype::F16, 0x7BFF, 0x7C00);
  expect_found<uint16_t>(StoredDtype::BF16, 0x7F7F, 0x7F80);
  expect_found<uint32_t>(StoredDtype::F32, 0x7F7FFFFF, 0x7F800000);
  expect_found<uint64_t>(StoredDtype::F64, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000);
}

TEST(Finite, IntegersAlwaysAre) {
  const std::vector<uint32_t> all_ones(4, 0xFFFFFFFF);
  for (const StoredDtype dtype : {StoredDtype::I32, StoredDtype::U8, StoredDtype::I64}) {
    EXPECT_FALSE(any_not_finite(std::as_bytes(std::span(all_ones)), dtype));
  }
  EXPECT_FALSE(any_not_finite({}, StoredDtype::F32));
}

} // namespace
} // namespace palimpsest
