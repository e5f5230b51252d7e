#include <palimpsest/core/data/tokenizer/bpe.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tokenizer/byte_alphabet.h>
#include <palimpsest/core/data/tokenizer/utf8.h>
#include <palimpsest/tests/core/data/tokenizer/golden.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Json = nlohmann::json;

Bpe made(const Json& model, bool byte_level) {
  return {Component(model, "m/tokenizer.json", "model"), byte_level};
}

Ids ids_of(const Bpe& bpe, const std::string& word) {
  Bpe::Scratch scratch;
  Ids ids;
  bpe.encode(word, scratch, ids);
  return ids;
}

/// The 256 bytes, "ab" and "abc".
Json bytes_and_two() {
  Json vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    vocabulary[token_of_bytes({&raw, 1})] = byte;
  }
  vocabulary["ab"] = 256;
  vocabulary["abc"] = 257;
  return {{"type", "BPE"}, {"vocab", vocabulary}};
}

TEST(Bpe, ReadsMergesAsTextsAndAsPairs) {
  for (const Json& merges :
       {Json::array({"a b", "ab c"}),
        Json::array({Json::array({"a", "b"}), Json::array({"ab", "c"})})}) {
    Json model = bytes_and_two();
    model["merges"] = merges;
    EXPECT_EQ(ids_of(made(model, true), "abcab"), (Ids{257, 256}));
  }
}

/// A pair may hold spaces, where a text could not tell its two parts.
TEST(Bpe, ReadsPairsOfTokensWithSpaces) {
  const Json pairs =
      Json::array({Json::array({" ", "b"}), Json::array({"a", " b"}), Json::array({"a", " "})});
  const Json model{
      {"type", "BPE"},
      {"vocab", {{"a", 0}, {" ", 1}, {"b", 2}, {" b", 3}, {"a b", 4}, {"a ", 5}}},
      {"merges", pairs}};
  EXPECT_EQ(ids_of(made(model, false), "a ba a b"), (Ids{4, 5, 4}));
}

TEST(Bpe, RefusesMergesByIndex) {
  const auto refused = [](const Json& entry, const std::string& part) {
    Json model = bytes_and_two();
    model["merges"] = Json::array({"a b", entry});
    EXPECT_THAT(
        [&] { made(model, true); },
        ThrowsMessage<UserError>(
            testing::AllOf(HasSubstr("m/tokenizer.json: model.merges[1]"), HasSubstr(part))));
  };
  refused("ab", "give two tokens");
  refused("a b c", "give two tokens");
  refused(Json::array({"a"}), "give two tokens");
  refused(7, "give two tokens");
  refused("x y", "needs the token \"xy\", which is not in the vocabulary");
  refused({"none", "y"}, "needs the token \"none\"");
}

TEST(Bpe, RefusesModelsByKey) {
  const auto refused = [](const std::string& key, const Json& value, const std::string& part) {
    Json model = bytes_and_two();
    model["merges"] = Json::array();
    model[key] = value;
    EXPECT_THAT([&] { made(model, true); }, ThrowsMessage<UserError>(HasSubstr(part)));
  };
  refused("type", "WordPiece", "model.type is \"WordPiece\"; only BPE");
  refused("dropout", 0.1, "model.dropout is 0.1");
  refused("end_of_word_suffix", "</w>", "model.end_of_word_suffix is \"</w>\"");
  refused("unk_token", "<unk>", "model.unk_token is \"<unk>\"; it is not in the vocabulary");
  refused("vocab", Json::object(), "model.vocab is no object");
  refused("vocab", {{"a", -1}}, "model.vocab.a is -1");
  refused("vocab", {{"a", 1}, {"b", 1}}, "model.vocab.b is 1; \"a\" has that id too");
  refused("merges", "a b", "model.merges is \"a b\"; give a list");
}

/// Characters that no token stands for: by their bytes, else as the unknown token, alone or fused.
TEST(Bpe, FallsBack) {
  Json model{
      {"vocab", {{"<unk>", 0}, {"a", 1}, {"<0xC3>", 2}, {"<0xA9>", 3}}},
      {"merges", Json::array()},
      {"unk_token", "<unk>"},
      {"byte_fallback", true},
      {"fuse_unk", false}};
  EXPECT_EQ(ids_of(made(model, false), "a\xc3\xa9xya"), (Ids{1, 2, 3, 0, 0, 1}));
  model["fuse_unk"] = true;
  EXPECT_EQ(ids_of(made(model, false), "xyax"), (Ids{0, 1, 0}));
  model["byte_fallback"] = false;
  EXPECT_EQ(ids_of(made(model, false), "a\xc3\xa9"), (Ids{1, 0}));
}

TEST(Bpe, TakesWholeWordsFirst) {
  Json model = bytes_and_two();
  model["merges"] = Json::array();
  EXPECT_EQ(ids_of(made(model, true), "abc"), (Ids{'a', 'b', 'c'}));
  model["ignore_merges"] = true;
  EXPECT_EQ(ids_of(made(model, true), "abc"), (Ids{257}));
  EXPECT_EQ(ids_of(made(model, true), "abca"), (Ids{'a', 'b', 'c', 'a'}));
}

TEST(Bpe, KnowsWhetherMergesCrossMarks) {
  const std::string m = "\xe2\x96\x81";
  const auto pair = [](const std::string& a, const std::string& b) { return Json::array({a, b}); };
  const auto separable = [&](const std::vector<Json>& merges) {
    const Json vocabulary{
        {"a", 0}, {m, 1}, {m + "a", 2}, {m + m, 3}, {"a" + m, 4}, {m + m + "a", 5}};
    return made({{"vocab", vocabulary}, {"merges", merges}}, false).separable_at_marks();
  };
  EXPECT_TRUE(separable({pair(m, "a"), pair(m, m), pair(m, m + "a")}));
  EXPECT_FALSE(separable({pair(m, "a"), pair("a", m)}));
}

/// Byte-pair encoding by the book: look at all pairs, merge the best, begin again.
Ids by_the_book(
    const std::map<std::pair<std::string, std::string>, int>& ranks,
    const Bpe& bpe,
    std::vector<std::string> parts) {
  for (;;) {
    int best = std::numeric_limits<int>::max();
    size_t where = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        where = i;
      }
    }
    if (best == std::numeric_limits<int>::max()) {
      break;
    }
    parts[where] += parts[where + 1];
    parts.erase(parts.begin() + static_cast<int64_t>(where) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) {
    ids.push_back(bpe.id(part).value());
  }
  return ids;
}

/// Short and long words go two ways.
TEST(Bpe, MergesByTheBook) {
  const Json model = golden_json("gpt2-512").at("model");
  const Bpe bpe = made(model, true);
  std::map<std::pair<std::string, std::string>, int> ranks;
  for (const auto& merge : model.at("merges")) {
    const auto line = merge.get<std::string>();
    const size_t space = line.find(' ');
    const int rank = static_cast<int>(ranks.size());
    ranks[{line.substr(0, space), line.substr(space + 1)}] = rank;
  }
  constexpr std::string_view kLetters = "  etaoinshrdlu";
  std::mt19937 random(3); // NOLINT: the same words each time
  std::uniform_int_distribution<size_t> choose(0, kLetters.size() - 1);
  for (int round = 0; round < 400; ++round) {
    std::string word;
    std::vector<std::string> parts;
    for (int size = round % 200; size >= 0; --size) {
      word += kLetters[choose(random)];
      parts.push_back(token_of_bytes({&word.back(), 1}));
    }
    ASSERT_EQ(ids_of(bpe, word), by_the_book(ranks, bpe, parts)) << word;
  }
}

TEST(Bpe, MergesAMillionBytes) {
  const Bpe bpe = made(golden_json("gpt2-512").at("model"), true);
  const std::string spaces(1000000, ' ');
  const Ids ids = ids_of(bpe, spaces);
  size_t bytes = 0;
  for (const int32_t id : ids) {
    bytes += bytes_of_token(bpe.tokens()[static_cast<size_t>(id)])->size();
  }
  EXPECT_EQ(bytes, spaces.size());
}

} // namespace
} // namespace palimpsest
