#include <palimpsest/core/data/records/utf8.h>

#include <gtest/gtest.h>

#include <string>

namespace palimpsest {
namespace {

/// The encoding of a code point by its definition, whether it may be encoded or not.
std::string encoded(unsigned point, int size) {
  if (size == 1) {
    return {static_cast<char>(point)};
  }
  std::string bytes;
  for (int i = size - 1; i > 0; --i) {
    bytes.insert(bytes.begin(), static_cast<char>(0x80 | (point & 0x3F)));
    point >>= 6;
  }
  static constexpr int kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  bytes.insert(bytes.begin(), static_cast<char>(kLead[size] | static_cast<int>(point)));
  return bytes;
}

TEST(FirstInvalidUtf8, AcceptsEveryCharacterInItsShortestFormAlone) {
  for (unsigned point = 0; point < 0x120000; point += point < 0x900 ? 1 : 61) {
    const int shortest = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    const bool character = point < 0x110000 && (point < 0xD800 || point > 0xDFFF);
    for (int size = shortest; size <= 4; ++size) {
      const std::string text = "ab" + encoded(point, size) + "c";
      EXPECT_EQ(!first_invalid_utf8(text).has_value(), character && size == shortest)
          << point << " in " << size;
    }
  }
}

TEST(FirstInvalidUtf8, NamesTheByte) {
  EXPECT_EQ(first_invalid_utf8("é\xff"), 2);
  EXPECT_EQ(first_invalid_utf8("a\xe2\x82"), 1); // cut off
  EXPECT_EQ(first_invalid_utf8("\x80"), 0);
  EXPECT_EQ(first_invalid_utf8("\xe2\x28\xa1"), 0);
  EXPECT_EQ(first_invalid_utf8(""), std::nullopt);
}

} // namespace
} // namespace palimpsest
