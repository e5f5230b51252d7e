#include <palimpsest/core/data/tokenizer/normalizer.h>

#include <palimpsest/core/data/tokenizer/utf8.h>

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <array>

namespace palimpsest {
namespace {

std::string normalized(const nlohmann::json& json, std::string text, bool continued = false) {
  Regex::Matcher matcher;
  Normalizer(Component(json, "tokenizer.json", "normalizer")).apply(text, continued, matcher);
  return text;
}

TEST(Normalizer, BringsTextIntoNormalForms) {
  const auto form = [](const char* type, const std::string& text) {
    return normalized({{"type", type}}, text);
  };
  const std::string composed = "\xc3\xa9";
  const std::string decomposed = "e\xcc\x81";
  EXPECT_EQ(form("NFC", decomposed), composed);
  EXPECT_EQ(form("NFC", composed), composed);
  EXPECT_EQ(form("NFD", composed), decomposed);
  EXPECT_EQ(form("NFC", "\xef\xac\x81"), "\xef\xac\x81"); // the ligature fi
  EXPECT_EQ(form("NFKC", "\xef\xac\x81"), "fi");
  EXPECT_EQ(form("NFKD", composed), decomposed);
  EXPECT_EQ(form("NFC", "\xe2\x84\xab"), "\xc3\x85"); // the sign of the unit
  EXPECT_EQ(form("NFC", "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab"), "\xed\x95\x9c"); // Hangul
  EXPECT_EQ(form("NFC", std::string("a\0b\xcc\x81", 5)), std::string("a\0b\xcc\x81", 5));
}

TEST(Normalizer, ReplacesAndPrepends) {
  const nlohmann::json marks{
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Prepend"}, {"prepend", "_"}},
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "_"}}}}};
  EXPECT_EQ(normalized(marks, "a  b"), "_a__b");
  EXPECT_EQ(normalized(marks, " b", /*continued=*/true), "_b");
  EXPECT_EQ(normalized(marks, ""), "");
  EXPECT_EQ(
      normalized(
          {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}, "a   b  c"),
      "a b c");
  EXPECT_EQ(normalized(nullptr, "a  b"), "a  b");
}

/// Nothing that passes for normal without a closer look is changed by the normal form: no character
/// by itself, and none composes with one before it.
TEST(Normalizer, KnowsTextThatIsNormalAlready) {
  int64_t plain = 0;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) {
      continue;
    }
    std::string text;
    append_utf8(code, text);
    if (surely_nfc(text)) {
      ++plain;
      ASSERT_EQ(normalized({{"type", "NFC"}}, "\xcc\x81" + text), "\xcc\x81" + text) << code;
    }
    std::array<utf8proc_int32_t, 4> pair{};
    const auto size = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(code), pair.data(), pair.size(), UTF8PROC_DECOMPOSE, nullptr);
    for (utf8proc_ssize_t i = 1; i < size; ++i) { // what may compose with what stands before it
      std::string second;
      append_utf8(static_cast<uint32_t>(pair[i]), second);
      ASSERT_FALSE(surely_nfc(second)) << pair[i];
    }
  }
  EXPECT_GT(plain, 30000);
}

TEST(Normalizer, KnowsWhatCutsDoToIt) {
  const auto made = [](const nlohmann::json& json) {
    return Normalizer(Component(json, "tokenizer.json", "normalizer"));
  };
  const nlohmann::json spaces{
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xe2\x96\x81"}};
  const nlohmann::json prepend{{"type", "Prepend"}, {"prepend", "_"}};
  EXPECT_TRUE(made(spaces).marks_spaces());
  EXPECT_TRUE(made(spaces).works_on_parts());
  EXPECT_FALSE(made(spaces).prepends());
  EXPECT_TRUE(made(prepend).prepends());
  EXPECT_FALSE(made(prepend).marks_spaces());
  EXPECT_FALSE(made({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", ""}})
                   .works_on_parts());
}

} // namespace
} // namespace palimpsest
