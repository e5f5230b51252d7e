#include <palimpsest/core/data/tokenizer/word_scanner.h>

#include <palimpsest/core/data/tokenizer/regex.h>
#include <palimpsest/core/data/tokenizer/utf8.h>
#include <palimpsest/tests/core/data/tokenizer/golden.h>

#include <gtest/gtest.h>

#include <random>

namespace palimpsest {
namespace {

std::vector<std::string> words_of(WordRule rule, const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = word_end(rule, text, at);
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::vector<std::string> matches_of(const Regex& regex, const std::string& text) {
  Regex::Matcher matcher;
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const auto match = regex.find(text, at, matcher);
    words.push_back(text.substr(match->begin, match->end - match->begin));
    at = match->end;
  }
  return words;
}

using Words = std::vector<std::string>;

TEST(WordScanner, SplitsRunsOfWhiteSpace) {
  EXPECT_EQ(words_of(WordRule::kGpt2, "a   b"), (Words{"a", "  ", " b"}));
  EXPECT_EQ(words_of(WordRule::kGpt2, "hello  \n\n world"), (Words{"hello", "  \n\n", " world"}));
  EXPECT_EQ(words_of(WordRule::kGpt2, "a\r\nb"), (Words{"a", "\r", "\n", "b"}));
  EXPECT_EQ(words_of(WordRule::kGpt2, "end   "), (Words{"end", "   "}));
  EXPECT_EQ(
      words_of(WordRule::kGpt2, "I'll DON'T 12345"),
      (Words{"I", "'ll", " DON", "'", "T", " 12345"}));
  EXPECT_EQ(words_of(WordRule::kLlama3, "a\r\nb"), (Words{"a", "\r\n", "b"}));
  EXPECT_EQ(words_of(WordRule::kLlama3, " 12345"), (Words{" ", "123", "45"}));
  EXPECT_EQ(words_of(WordRule::kLlama3, "I'LL"), (Words{"I", "'LL"}));
  EXPECT_EQ(words_of(WordRule::kQwen2, " 123"), (Words{" ", "1", "2", "3"}));
  EXPECT_EQ(words_of(WordRule::kLlama3, "it'\xc5\xbfx"), (Words{"it", "'\xc5\xbf", "x"}));
}

TEST(WordScanner, SplitsAsTheReference) {
  const auto check_splits = [](const std::string& name, WordRule rule, bool with_marks) {
    int64_t checked = 0;
    for (const auto& one : golden_cases(name, "cases.json")) {
      const auto text = one.at("text").get<std::string>();
      if (!one.contains("splits") || (!with_marks && text.find('\xcc') != std::string::npos)) {
        continue; // of Qwen2's the lengths are those after normalisation
      }
      std::vector<size_t> sizes;
      size_t total = 0;
      for (const std::string& word : words_of(rule, text)) {
        sizes.push_back(word.size());
      }
      const auto wanted = one.at("splits").get<std::vector<size_t>>();
      for (const size_t size : wanted) {
        total += size;
      }
      if (total == text.size()) {
        EXPECT_EQ(sizes, wanted) << one.at("text").dump();
        ++checked;
      }
    }
    EXPECT_GT(checked, 280) << name;
  };
  check_splits("gpt2-512", WordRule::kGpt2, true);
  check_splits("llama3-512", WordRule::kLlama3, true);
  check_splits("qwen2-512", WordRule::kQwen2, false);
}

TEST(WordScanner, CutsBetweenLettersAndWhiteSpace) {
  EXPECT_EQ(last_word_cut("ab cd\nef", true), 5);
  EXPECT_EQ(last_word_cut("ab cd\nef", false), 2);
  EXPECT_EQ(last_word_cut("ab  cd. 7 ", true), 2); // before the run of spaces
  EXPECT_EQ(last_word_cut("\xc3\xa9 \xc3", true), 2);
  EXPECT_EQ(last_word_cut("\xa9 x", true), std::nullopt); // begins within a character
  EXPECT_EQ(last_word_cut(" ab", true), std::nullopt);
  EXPECT_EQ(last_word_cut("", true), std::nullopt);
  EXPECT_EQ(last_word_cut("a b c", true, [](std::string_view letter) { return letter != "b"; }), 1);
}

/// Random texts of characters that the rules tell apart.
TEST(WordScanner, SplitsAsTheRegularExpressions) {
  constexpr std::u32string_view kCharacters =
      U"aZsStTrReEvVmMlLdD '\"\n\r\t\v.-_09\u00e9\u017f\u4f60\u0301\u00a0\u3000\u2028\u0085\u180e"
      U"\u0e51\u00b2\U0001f600\u200d\x00";
  std::mt19937 random(7); // NOLINT: the same texts each time
  std::uniform_int_distribution<size_t> choose(0, kCharacters.size() - 1);
  for (const auto& [rule, expression] :
       {std::pair{WordRule::kGpt2, kGpt2Regex},
        std::pair{WordRule::kLlama3, kLlama3Regex},
        std::pair{WordRule::kQwen2, kQwen2Regex}}) {
    ASSERT_EQ(known_word_rule(expression), rule);
    const Regex regex(expression, "test");
    for (int round = 0; round < 20000; ++round) {
      std::string text;
      for (size_t size = 1 + round % 12; size > 0; --size) {
        append_utf8(kCharacters[choose(random)], text);
      }
      ASSERT_EQ(words_of(rule, text), matches_of(regex, text)) << nlohmann::json(text).dump();
    }
  }
  EXPECT_EQ(known_word_rule(R"(\w+|\s+)"), std::nullopt);
}

} // namespace
} // namespace palimpsest
