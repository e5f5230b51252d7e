#include <palimpsest/core/data/tokenizer/char_class.h>

#include <palimpsest/core/data/tokenizer/regex.h>
#include <palimpsest/core/data/tokenizer/utf8.h>

#include <gtest/gtest.h>

#include <string_view>

namespace palimpsest {
namespace {

/// Unicode's list of white space is short and stable.
TEST(CharClass, KnowsAllWhiteSpace) {
  int64_t spaces = 0;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    spaces += char_class(code) == CharClass::kSpace ? 1 : 0;
  }
  EXPECT_EQ(spaces, 25);
  for (const uint32_t code :
       {0x09,
        0x0a,
        0x0b,
        0x0c,
        0x0d,
        0x20,
        0x85,
        0xa0,
        0x1680,
        0x2000,
        0x200a,
        0x2028,
        0x2029,
        0x202f,
        0x205f,
        0x3000}) {
    EXPECT_EQ(char_class(code), CharClass::kSpace) << code;
  }
}

/// PCRE2 has tables of its own, of an older Unicode: what it calls a letter or number is one.
TEST(CharClass, AgreesWithRegularExpressions) {
  const Regex letter(R"(\p{L})", "test");
  const Regex number(R"(\p{N})", "test");
  const Regex space(R"(\s)", "test");
  Regex::Matcher matcher;
  for (uint32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 7) {
    if (code >= 0xd800 && code < 0xe000) {
      continue;
    }
    std::string text;
    append_utf8(code, text);
    const CharClass own = char_class(code);
    if (letter.find(text, 0, matcher)) {
      ASSERT_EQ(own, CharClass::kLetter) << code;
    } else if (number.find(text, 0, matcher)) {
      ASSERT_EQ(own, CharClass::kNumber) << code;
    }
    ASSERT_EQ(own == CharClass::kSpace, space.find(text, 0, matcher).has_value()) << code;
  }
}

TEST(CharClass, KnowsWordCharacters) {
  for (const char32_t code : std::u32string_view(U"aZ0_\u00e9\u4f60\u0301\u203f\u0e51\u200d")) {
    EXPECT_TRUE(is_word_character(code)) << static_cast<uint32_t>(code);
  }
  for (const char32_t code : std::u32string_view(U" -<|\u00b2\u3002\u00a0")) {
    EXPECT_FALSE(is_word_character(code)) << static_cast<uint32_t>(code);
  }
}

} // namespace
} // namespace palimpsest
