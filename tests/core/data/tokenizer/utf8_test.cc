#include <palimpsest/core/data/tokenizer/utf8.h>

#include <palimpsest/core/base/error.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(Utf8, ReadsWhatItWrites) {
  for (uint32_t code = 0; code < 0x110000; code += code < 0x1000 ? 1 : 61) {
    if (code >= 0xd800 && code < 0xe000) {
      continue;
    }
    std::string text = "x";
    append_utf8(code, text);
    const Utf8Char read = utf8_at(text, 1);
    ASSERT_EQ(read.code, code);
    ASSERT_EQ(read.size, text.size() - 1);
    ASSERT_EQ(utf8_before(text, text.size()), 1);
    ASSERT_EQ(invalid_utf8(text), std::nullopt);
  }
}

TEST(Utf8, FindsTheFirstByteThatIsNone) {
  EXPECT_EQ(invalid_utf8(""), std::nullopt);
  EXPECT_THROW(require_utf8("\xc3"), UserError);
  require_utf8("\xc3\xa4");
  EXPECT_EQ(invalid_utf8("0123456789abcdef\x80"), 16);
  EXPECT_EQ(invalid_utf8("\xc3"), 0);
  EXPECT_EQ(invalid_utf8("a\xe0\x9f\xbf"), 1); // overlong
  EXPECT_EQ(invalid_utf8("a\xed\xa0\x80"), 1); // a surrogate
  EXPECT_EQ(invalid_utf8("a\xf5\x80\x80\x80"), 1); // beyond U+10FFFF
}

/// The example of the Unicode standard, table 3-8, and one byte at a time.
TEST(Utf8, ReplacesTheLongestBrokenBeginnings) {
  const std::string bytes =
      "a\xf1\x80\x80\xe1\x80\xc2"
      "b\x80"
      "c\x80\xbf"
      "d";
  const std::string r(kReplacementCharacter);
  const std::string wanted = "a" + r + r + r + "b" + r + "c" + r + r + "d";
  std::string held = bytes;
  std::string text;
  take_characters(held, /*last=*/true, text);
  EXPECT_EQ(text, wanted);
  EXPECT_EQ(held, "");
  text.clear();
  for (const char byte : bytes) {
    held += byte;
    take_characters(held, /*last=*/false, text);
  }
  EXPECT_EQ(text, wanted);
}

TEST(Utf8, HoldsBackWhatMayBecomeACharacter) {
  std::string held = "a\xf0\x9f\x98";
  std::string text;
  take_characters(held, /*last=*/false, text);
  EXPECT_EQ(text, "a");
  EXPECT_EQ(held, "\xf0\x9f\x98");
  std::string other = held;
  held += "\x80";
  take_characters(held, /*last=*/false, text);
  EXPECT_EQ(text, "a\xf0\x9f\x98\x80");
  text.clear();
  take_characters(other, /*last=*/true, text);
  EXPECT_EQ(text, kReplacementCharacter);
}

} // namespace
} // namespace palimpsest
