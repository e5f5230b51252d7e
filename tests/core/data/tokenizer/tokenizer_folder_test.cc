// Covers: component.cc, text_pattern.cc
#include <palimpsest/core/data/tokenizer/tokenizer_folder.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tokenizer/component.h>
#include <palimpsest/core/data/tokenizer/text_pattern.h>
#include <palimpsest/tests/core/data/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::ThrowsMessage;
using Json = nlohmann::json;

void expect_refused(const std::filesystem::path& folder, const std::string& part) {
  EXPECT_THAT([&] { read_tokenizer_folder(folder); }, ThrowsMessage<UserError>(HasSubstr(part)));
}

TEST(TokenizerFolder, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  expect_refused(folder.path(), "has neither tokenizer.json nor vocab.json and merges.txt");
  expect_refused(folder.path() / "none", "none is no folder");
  folder.write("tokenizer.model", "x");
  expect_refused(folder.path(), "convert its tokenizer.model");
  folder.write("tokenizer.json", "{");
  expect_refused(folder.path(), "tokenizer.json: not valid JSON");
  folder.write("tokenizer.json", "[]");
  expect_refused(folder.path(), "tokenizer.json holds no JSON object");
}

TEST(TokenizerFolder, ReadsRolesAndAddedTokens) {
  const TemporaryFolder folder;
  folder.write(
      "tokenizer.json",
      R"({"added_tokens": [{"id": 5, "content": "<a>", "special": true, "lstrip": true}]})");
  folder.write("tokenizer_config.json", R"({
    "bos_token": {"content": "<a>", "lstrip": false}, "eos_token": "<b>", "pad_token": null,
    "add_bos_token": true,
    "added_tokens_decoder": {"5": {"content": "<a>"}, "6": {"content": "<b>", "normalized": false}}})");
  folder.write("special_tokens_map.json", R"({"eos_token": "<c>", "unk_token": "<d>"})");
  const TokenizerFolder files = read_tokenizer_folder(folder.path());
  ASSERT_EQ(files.added.size(), 2);
  EXPECT_TRUE(files.added[0].special);
  EXPECT_TRUE(files.added[0].lstrip);
  EXPECT_TRUE(files.added[0].normalized);
  EXPECT_EQ(files.added[1].id, 6);
  EXPECT_FALSE(files.added[1].normalized);
  EXPECT_THAT(
      files.roles,
      ElementsAre(Pair("bos_token", "<a>"), Pair("eos_token", "<b>"), Pair("unk_token", "<d>")));
  EXPECT_EQ(files.add_bos, true);
  EXPECT_EQ(files.add_eos, std::nullopt);
}

TEST(TokenizerFolder, RefusesMalformedAddedTokens) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", "{}");
  const auto refused = [&](const std::string& config, const std::string& part) {
    folder.write("tokenizer_config.json", config);
    expect_refused(folder.path(), part);
  };
  refused(
      R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
      "tokenizer_config.json: added_tokens_decoder has the key \"x\"; give ids");
  refused(
      R"({"added_tokens_decoder": {"-1": {"content": "a"}}})",
      "added_tokens_decoder.-1 has the id -1");
  refused(R"({"added_tokens_decoder": {"1": {}}})", "added_tokens_decoder.1 has no content");
  refused(
      R"({"added_tokens_decoder": {"1": {"content": "a", "special": 1}}})",
      "added_tokens_decoder.1.special is 1; give true or false");
  refused(R"({"add_bos_token": "yes"})", "add_bos_token is \"yes\"; give true or false");
}

TEST(TokenizerFolder, ReadsTheOlderFormByItsClass) {
  const TemporaryFolder folder;
  folder.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  folder.write("merges.txt", "#version: 0.2\r\na b\r\n\r\n");
  const Json gpt2 = read_tokenizer_folder(folder.path()).tokenizer;
  EXPECT_EQ(gpt2.at("model").at("merges"), Json::array({"a b"}));
  EXPECT_EQ(gpt2.at("pre_tokenizer").at("use_regex"), true);
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast"})");
  const Json qwen2 = read_tokenizer_folder(folder.path()).tokenizer;
  EXPECT_EQ(qwen2.at("normalizer").at("type"), "NFC");
  EXPECT_EQ(qwen2.at("pre_tokenizer").at("type"), "Sequence");
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "CLIPTokenizer"})");
  expect_refused(
      folder.path(), "tokenizer_class is \"CLIPTokenizer\"; of vocab.json and merges.txt");
}

TEST(TextPattern, FindsTextsAndExpressions) {
  Regex::Matcher matcher;
  const auto found = [&](const Json& pattern, const std::string& text, size_t at) -> std::string {
    const Json json{{"pattern", pattern}};
    const TextPattern made(Component(json, "f", "c"));
    const auto match = made.find(text, at, matcher);
    return match ? std::to_string(match->begin) + "-" + std::to_string(match->end) : "";
  };
  EXPECT_EQ(found({{"String", "b."}}, "ab.b.", 2), "3-5");
  EXPECT_EQ(found("b.", "abcb.", 0), "3-5");
  EXPECT_EQ(found({{"Regex", "b."}}, "abcb.", 0), "1-3");
  EXPECT_EQ(found({{"Regex", "x*"}}, "\xc3\xa9x", 0), "2-3"); // no empty ones
  EXPECT_EQ(found({{"Regex", "x*"}}, "\xc3\xa9", 0), "");
  const Json empty{{"pattern", {{"String", ""}}}};
  EXPECT_THAT(
      [&] { TextPattern(Component(empty, "f", "c")); },
      ThrowsMessage<UserError>(HasSubstr("f: c.pattern is object; an empty pattern")));
}

} // namespace
} // namespace palimpsest
