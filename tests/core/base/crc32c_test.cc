#include <palimpsest/core/base/crc32c.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>

namespace palimpsest {
namespace {

uint32_t of(std::string_view text) {
  return crc32c(std::as_bytes(std::span(text)));
}

// RFC 3720, appendix B.4, whose bytes stand in the order in which they are sent.
TEST(Crc32c, TheStandardsVectors) {
  EXPECT_EQ(of(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(of(std::string(32, '\xff')), 0x62a8ab43U);
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), '\0');
  EXPECT_EQ(of(ascending), 0x46dd794eU);
  std::ranges::reverse(ascending);
  EXPECT_EQ(of(ascending), 0x113fdb5cU);
}

// What catalogues of checksums give for it.
TEST(Crc32c, TheUsualCheck) {
  EXPECT_EQ(of("123456789"), 0xe3069283U);
  EXPECT_EQ(of(""), 0U);
}

} // namespace
} // namespace palimpsest
