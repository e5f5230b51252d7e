#include <palimpsest/core/data/tokenizer/regex.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Regex, FindsByUnicodeRules) {
  const Regex words(R"(\p{L}+(?=\s))", "test");
  Regex::Matcher matcher;
  const std::string text = "1 \xc3\xa9t\xc3\xa9\xe3\x80\x80x";
  const auto match = words.find(text, 0, matcher);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->begin, 2);
  EXPECT_EQ(match->end, 7);
  EXPECT_FALSE(words.find(text, 7, matcher).has_value());
}

TEST(Regex, ReadsOnigurumasSyntax) {
  Regex::Matcher matcher;
  const auto found = [&](std::string_view expression, std::string_view text) {
    return Regex(expression, "test").find(text, 0, matcher).has_value();
  };
  constexpr std::string_view kVowelSeparator = "\xe1\xa0\x8e"; // U+180E: no white space any more
  EXPECT_FALSE(found(R"(\s)", kVowelSeparator));
  EXPECT_FALSE(found(R"([a\s])", kVowelSeparator));
  EXPECT_TRUE(found(R"(\S)", kVowelSeparator));
  EXPECT_TRUE(found(R"([^\s])", kVowelSeparator));
  EXPECT_TRUE(found(R"(^b$)", "a\nb\nc")); // at every line
  EXPECT_TRUE(found(R"([a\]]x)", "]x"));
  // Word characters are letters, marks, digits and connectors, the circled letters among them.
  for (const char* text : {"a", "\xcc\x81", "7", "_", "\xe2\x93\x90"}) {
    EXPECT_TRUE(found(R"(\w)", text)) << text;
    EXPECT_FALSE(found(R"(\W|[^\w])", text)) << text;
  }
  EXPECT_FALSE(found(R"(\w)", "\xe2\x82\x82")); // the subscript two
  EXPECT_TRUE(found(R"(\w)", "\xc2\xb2")); // the superscript two, outside of classes only
  EXPECT_FALSE(found(R"([\w])", "\xc2\xb2"));
  EXPECT_TRUE(found(R"(\p{Han})", "\xe4\xbd\xa0"));
  EXPECT_FALSE(found(R"(\p{Han})", "\xe3\x80\x82")); // a full stop that several scripts share
  EXPECT_TRUE(found(R"(\P{Han}\p{Any}\p{Lu})", "abC"));
  EXPECT_TRUE(found(R"(\\s)", "\\s")); // an escaped backslash
}

TEST(Regex, RefusesWhatItWouldReadInAnotherWay) {
  const auto refused = [](std::string_view expression, const std::string& part) {
    EXPECT_THAT(
        [&] { Regex(expression, "m/tokenizer.json: pre_tokenizer"); },
        ThrowsMessage<UserError>(
            testing::AllOf(HasSubstr("m/tokenizer.json: pre_tokenizer: "), HasSubstr(part))));
  };
  refused(R"([a-z&&[^b]])", "an intersection of classes");
  refused(R"([a[bc]])", "a class inside a class");
  refused(R"([\S])", "\\S inside a class");
  refused(R"([^\W_])", "\\W inside a class");
  refused(R"([[:alpha:]])", "a POSIX class");
  refused(R"(\bx)", "\\b");
  refused(R"(\p{Emoji})", "not valid");
  refused(R"((?m:a.b))", "(?m)");
  refused(R"(\h+)", "\\h");
  refused("(a", "not valid: missing closing parenthesis");
}

TEST(Regex, EndsOnTextsThatTakeTooLong) {
  const Regex slow(R"((\w+)*[!?])", "test");
  Regex::Matcher matcher;
  EXPECT_THAT(
      [&] { slow.find(std::string(40, 'a'), 0, matcher); },
      ThrowsMessage<UserError>(HasSubstr("fails on this text: match limit exceeded")));
}

TEST(Regex, MatchesLongTexts) {
  const Regex runs(R"((?:a|b)+)", "test");
  Regex::Matcher matcher;
  const std::string text(1000000, 'a');
  EXPECT_EQ(runs.find(text, 0, matcher)->end, text.size());
}

} // namespace
} // namespace palimpsest
