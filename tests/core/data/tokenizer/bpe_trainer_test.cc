#include <palimpsest/core/data/tokenizer/bpe_trainer.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tokenizer/byte_alphabet.h>
#include <palimpsest/tests/core/data/temporary_folder.h>
#include <palimpsest/tests/core/data/tokenizer/golden.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::ThrowsMessage;

std::string training_text() {
  std::string text;
  for (const auto& one : golden_cases("gpt2-2000", "cases.json")) {
    text += (text.empty() ? "" : "\n") + one.at("text").get<std::string>();
  }
  return text;
}

WordCounts counts_of(WordRule rule, std::string_view text) {
  WordCounts counts(rule);
  counts.add(text);
  return counts;
}

TEST(WordCounts, AddUp) {
  WordCounts counts = counts_of(WordRule::kGpt2, "a b a");
  counts.merge(counts_of(WordRule::kGpt2, " b" + std::string(WordCounts::kLongestWord + 1, '-')));
  EXPECT_THAT(counts.sorted(), ElementsAre(Pair(" a", 1), Pair(" b", 2), Pair("a", 1)));
  EXPECT_EQ(counts.different_words(), 3);
  EXPECT_EQ(counts.long_words(), 1);
}

TEST(BpeTrainer, LearnsTheMergesOfTheReference) {
  const auto golden =
      nlohmann::json::parse(read_file(golden_folder("trained.json"))); // made by make_bpe.py
  const std::string text = training_text();
  for (const auto& [name, rule] :
       {std::pair{"gpt2", WordRule::kGpt2}, std::pair{"llama3", WordRule::kLlama3}}) {
    const auto& wanted = golden.at(name);
    ASSERT_EQ(wanted.size(), 304);
    const TrainedBpe bpe = train_bpe(counts_of(rule, text), 560);
    ASSERT_EQ(bpe.tokens.size(), 560);
    std::vector<std::pair<std::string, std::string>> merges;
    for (const auto& [left, right] : bpe.merges) {
      merges.emplace_back(token_of_bytes(bpe.tokens[left]), token_of_bytes(bpe.tokens[right]));
    }
    EXPECT_EQ(nlohmann::json(merges), wanted) << name;
  }
}

/// By hand: "ab" occurs three times. Then " ab" and "abc" occur twice, and the space has the lower id.
TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  const TrainedBpe bpe = train_bpe(counts_of(WordRule::kGpt2, "abc abc ab"), 258);
  EXPECT_EQ(bpe.tokens[256], "ab");
  EXPECT_EQ(bpe.tokens[257], " ab");
}

TEST(BpeTrainer, SaysHowManyTokensTheTextGives) {
  EXPECT_THAT(
      [] { train_bpe(counts_of(WordRule::kGpt2, "abab abab"), 1000); },
      ThrowsMessage<UserError>(HasSubstr("give at most 258, or more text")));
  EXPECT_THAT(
      [] { train_bpe(counts_of(WordRule::kGpt2, "abab abab"), 1000, {}, /*special=*/3); },
      ThrowsMessage<UserError>(HasSubstr("gives 261 tokens, not 1003: ")));
}

/// What is written is read, knows its special tokens, and merges as it was trained.
TEST(BpeTrainer, WritesATokenizer) {
  const TemporaryFolder folder;
  const std::string text = training_text();
  const TrainedBpe bpe = train_bpe(counts_of(WordRule::kLlama3, text), 600);
  write_tokenizer(bpe, {"<end>", "<pad>"}, folder.path() / "t");
  const Tokenizer tokenizer(folder.path() / "t");
  EXPECT_EQ(tokenizer.vocabulary_size(), 602);
  EXPECT_EQ(tokenizer.end(), 600);
  EXPECT_EQ(tokenizer.beginning(), 600);
  EXPECT_TRUE(tokenizer.is_special(601));
  EXPECT_EQ(encoded(tokenizer, "a<pad>"), (Ids{tokenizer.id("a").value(), 601}));
  const Ids ids = encoded(tokenizer, text);
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokens::kAdd), text);
  EXPECT_LT(ids.size(), text.size() * 6 / 10);
  for (size_t id = 256; id < bpe.tokens.size(); ++id) { // each token is its own encoding
    EXPECT_EQ(tokenizer.token(static_cast<int32_t>(id)), token_of_bytes(bpe.tokens[id]));
  }
}

TEST(BpeTrainer, RefusesSpecialTokensThatAreNone) {
  const TemporaryFolder folder;
  const TrainedBpe bpe = train_bpe(counts_of(WordRule::kGpt2, "ab ab"), 257);
  const auto refused = [&](const std::vector<std::string>& special, const std::string& part) {
    EXPECT_THAT(
        [&] { write_tokenizer(bpe, special, folder.path() / "t"); },
        ThrowsMessage<UserError>(HasSubstr(part)));
  };
  refused({""}, "\"\" is empty");
  refused({"<a>", "<a>"}, "\"<a>\" is given twice");
  refused({"ab"}, "\"ab\" is a token of the text already");
  folder.write("here", "x");
  EXPECT_THROW(write_tokenizer(bpe, {}, folder.path()), UserError);
}

} // namespace
} // namespace palimpsest
