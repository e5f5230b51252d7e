#include <palimpsest/core/data/tokenizer/pre_tokenizer.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Json = nlohmann::json;
using Texts = std::vector<std::string>;

PreTokenizer made(const Json& json) {
  return PreTokenizer(Component(json, "m/tokenizer.json", "pre_tokenizer"));
}

Texts words_of(const Json& json, const std::string& text, bool at_start = true) {
  Words words{.text = text, .ends = {}};
  Regex::Matcher matcher;
  made(json).split(words, at_start, matcher);
  Texts texts;
  size_t begin = 0;
  for (const size_t end : words.ends) {
    texts.push_back(words.text.substr(begin, end - begin));
    begin = end;
  }
  return texts;
}

Json split(const Json& pattern, const std::string& behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
}

/// The example of the reference library's documentation.
TEST(PreTokenizer, KeepsMatchesInFiveWays) {
  const std::string text = "the-final--countdown";
  for (const Json& dash : {Json{{"String", "-"}}, Json{{"Regex", "-"}}}) {
    EXPECT_EQ(words_of(split(dash, "Removed"), text), (Texts{"the", "final", "countdown"}));
    EXPECT_EQ(
        words_of(split(dash, "Isolated"), text),
        (Texts{"the", "-", "final", "-", "-", "countdown"}));
    EXPECT_EQ(
        words_of(split(dash, "MergedWithPrevious"), text),
        (Texts{"the-", "final-", "-", "countdown"}));
    EXPECT_EQ(
        words_of(split(dash, "MergedWithNext"), text), (Texts{"the", "-final", "-", "-countdown"}));
    EXPECT_EQ(
        words_of(split(dash, "Contiguous"), text), (Texts{"the", "-", "final", "--", "countdown"}));
  }
  EXPECT_EQ(
      words_of(split({{"Regex", "[a-z]+"}}, "Removed", /*invert=*/true), text),
      (Texts{"the", "final", "countdown"}));
  EXPECT_EQ(
      words_of(split({{"Regex", std::string(kGpt2Regex)}}, "Removed", /*invert=*/true), "a b "),
      (Texts{"a", " b", " "}));
}

TEST(PreTokenizer, SplitsOffDigits) {
  EXPECT_EQ(
      words_of({{"type", "Digits"}, {"individual_digits", true}}, "Call 123 please"),
      (Texts{"Call ", "1", "2", "3", " please"}));
  EXPECT_EQ(
      words_of({{"type", "Digits"}, {"individual_digits", false}}, "Call 123 please"),
      (Texts{"Call ", "123", " please"}));
}

TEST(PreTokenizer, MarksSpaces) {
  const auto metaspace = [](const Json& more) {
    Json json{{"type", "Metaspace"}, {"replacement", "\xe2\x96\x81"}};
    json.update(more);
    return json;
  };
  const std::string m = "\xe2\x96\x81";
  EXPECT_EQ(
      words_of(metaspace({{"prepend_scheme", "always"}}), "a  b"), (Texts{m + "a", m, m + "b"}));
  EXPECT_EQ(words_of(metaspace({{"add_prefix_space", false}}), "a b"), (Texts{"a", m + "b"}));
  const Json first = metaspace({{"prepend_scheme", "first"}, {"split", false}});
  EXPECT_EQ(words_of(first, "a b"), (Texts{m + "a" + m + "b"}));
  EXPECT_EQ(words_of(first, "a b", /*at_start=*/false), (Texts{"a" + m + "b"}));
  EXPECT_EQ(words_of(first, " a"), (Texts{m + "a"}));
  EXPECT_EQ(words_of(metaspace({{"prepend_scheme", "never"}}), "a"), (Texts{"a"}));
}

TEST(PreTokenizer, GoesToBytes) {
  const Json plain{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  EXPECT_TRUE(made(plain).byte_level());
  EXPECT_EQ(words_of(plain, "a b"), (Texts{"a b"}));
  const Json prefix{{"type", "ByteLevel"}, {"add_prefix_space", true}};
  EXPECT_EQ(words_of(prefix, "a b"), (Texts{" a", " b"}));
  EXPECT_EQ(words_of(prefix, " a"), (Texts{" a"}));
  EXPECT_FALSE(made(nullptr).byte_level());
  EXPECT_EQ(words_of(nullptr, "a b"), (Texts{"a b"}));
  EXPECT_EQ(words_of(nullptr, ""), (Texts{}));
  const Json both{{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}}, prefix}}};
  EXPECT_EQ(words_of(both, "a1b"), (Texts{" a", " 1", " b"}));
}

TEST(PreTokenizer, KnowsWhereItsTextMayBeCut) {
  const Json rule = split({{"Regex", std::string(kLlama3Regex)}}, "Isolated");
  EXPECT_EQ(made(rule).cuts(false), WordCuts::kWhitespace);
  EXPECT_EQ(made({{"type", "ByteLevel"}}).cuts(false), WordCuts::kSpaces);
  EXPECT_EQ(made(nullptr).cuts(false), WordCuts::kModel);
  EXPECT_EQ(made(split({{"Regex", "\\w+"}}, "Isolated")).cuts(false), WordCuts::kNone);
  const Json gemma = split({{"String", " "}}, "MergedWithPrevious");
  EXPECT_EQ(made(gemma).cuts(/*spaces_marked=*/true), WordCuts::kModel);
  EXPECT_EQ(made(gemma).cuts(/*spaces_marked=*/false), WordCuts::kNone);
}

TEST(PreTokenizer, RefusesByName) {
  const auto refused = [](const Json& json, const std::string& part) {
    EXPECT_THAT(
        [&] { made(json); },
        ThrowsMessage<UserError>(
            testing::AllOf(HasSubstr("m/tokenizer.json: pre_tokenizer"), HasSubstr(part))));
  };
  refused({{"type", "Whitespace"}}, ".type is \"Whitespace\"; ByteLevel, Split");
  refused({{"typ", "Split"}}, "has no type");
  refused("Split", "is \"Split\"; give an object");
  refused(split({{"String", "-"}}, "Kept"), ".behavior is \"Kept\"");
  refused(split(7, "Removed"), ".pattern is 7; give a String or a Regex");
  refused(
      {{"type", "Sequence"}, {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}},
      "[1].type is \"Digits\"; nothing may follow ByteLevel");
  refused(
      {{"type", "Metaspace"}, {"replacement", "__"}}, ".replacement is \"__\"; give one character");
  refused(
      {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}},
      ".prepend_scheme is \"last\"");
}

} // namespace
} // namespace palimpsest
