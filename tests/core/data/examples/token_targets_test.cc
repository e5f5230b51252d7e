#include <palimpsest/core/data/examples/token_targets.h>

#include <palimpsest/tests/core/data/examples/toy_encoder.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

/// The text with targets in brackets, as tokens.
std::string marked(
    std::string_view text,
    const std::vector<TextSpan>& spans,
    const std::vector<std::string>& words) {
  const TokenExample example = encode_targets(toy_encoder(words).encode, text, spans);
  std::string all;
  for (size_t i = 0; i < example.ids.size(); ++i) {
    const int32_t id = example.ids[i];
    const std::string token =
        id < 256 ? std::string(1, static_cast<char>(id)) : words[static_cast<size_t>(id - 256)];
    all += example.targets[i] != 0 ? "[" + token + "]" : token + "|";
  }
  return all;
}

TEST(EncodeTargets, MarksTheTokensOfSpans) {
  EXPECT_EQ(marked("abcdef", {{1, 3}, {4, 6}}, {}), "a|[b][c]d|[e][f]");
  EXPECT_EQ(marked("u<e>hi<e>v<e>", {{4, 9}}, {"<e>", "hi"}), "u|<e>|[hi][<e>]v|<e>|");
  EXPECT_EQ(marked("abc", {{0, 3}}, {"ab"}), "[ab][c]");
  EXPECT_EQ(marked("abc", {}, {"ab"}), "ab|c|");
  EXPECT_EQ(marked("abc", {{0, 1}, {2, 3}}, {}), "[a]b|[c]");
  EXPECT_EQ(marked("", {}, {}), "");
  EXPECT_EQ(marked("ab", {{1, 1}}, {}), "a|b|");
}

TEST(EncodeTargets, CountsATokenOverABorderToTheSpan) {
  EXPECT_EQ(marked("x abc y", {{2, 5}}, {" a"}), "x|[ a][b][c] |y|");
  EXPECT_EQ(marked("x abc y", {{2, 5}}, {"c "}), "x| |[a][b][c ]y|");
  EXPECT_EQ(marked("x abc y", {{2, 5}}, {" abc "}), "x|[ abc ]y|");
  EXPECT_EQ(marked("xab", {{1, 2}, {2, 3}}, {"ab"}), "x|[ab]");
}

TEST(EncodeExample, PutsTheTokenizersTokensAroundAText) {
  TextEncoder encoder = toy_encoder({});
  encoder.before = {300, 301};
  encoder.after = {302};
  const auto example = [&](std::vector<TextSpan> targets, bool surrounded) {
    const TokenExample made = encode_example(encoder, {"ab", std::move(targets), surrounded});
    return std::pair(made.ids, made.targets);
  };
  const std::vector<int32_t> around = {300, 301, 'a', 'b', 302};
  EXPECT_EQ(example({{0, 2}}, true), std::pair(around, std::vector<uint8_t>{1, 1, 1, 1, 1}));
  EXPECT_EQ(example({{1, 2}}, true), std::pair(around, std::vector<uint8_t>{0, 0, 0, 1, 1}));
  EXPECT_EQ(example({{2, 2}}, true), std::pair(around, std::vector<uint8_t>{0, 0, 0, 0, 1}));
  EXPECT_EQ(
      example({{0, 2}}, false),
      std::pair(std::vector<int32_t>{'a', 'b'}, std::vector<uint8_t>{1, 1}));
  EXPECT_EQ(encode_example(encoder, {"", {{0, 0}}, true}).targets, (std::vector<uint8_t>{1, 1, 1}));
}

TEST(EncodeTargets, MarksAsAReferenceWithOffsetsDoes) {
  // Every pair of borders of a text, against the tokens' own offsets.
  const std::string text = "the theatre then ate <e> tea";
  const std::vector<std::string> words = {"the", " the", "ate", " ate", "<e>", " te", "theatre"};
  const std::vector<int32_t> ids = toy_encode(text, words);
  for (int64_t begin = 0; begin < std::ssize(text); ++begin) {
    for (int64_t end = begin + 1; end <= std::ssize(text); ++end) {
      const TokenExample example = encode_targets(toy_encoder(words).encode, text, {{begin, end}});
      ASSERT_EQ(example.ids, ids);
      int64_t at = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        const int64_t size =
            ids[i] < 256 ? 1 : std::ssize(words[static_cast<size_t>(ids[i] - 256)]);
        const bool overlaps = at < end && at + size > begin;
        EXPECT_EQ(example.targets[i] != 0, overlaps) << begin << " " << end << " token " << i;
        at += size;
      }
    }
  }
}

} // namespace
} // namespace palimpsest
