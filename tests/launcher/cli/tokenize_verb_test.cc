// Covers: launcher/compose/tokenize.cc
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/token_file.h>
#include <palimpsest/core/data/tokenizer/tokenizer.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstring>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::run;

std::string golden(const std::string& name) {
  return std::string(PALIMPSEST_TEST_DATA) + "/tokenizers/" + name;
}

class TokenizeVerb : public testing::ProgramFixture {
 protected:
  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return path(name);
  }

  template <typename Id>
  std::vector<int32_t> ids_in(const std::string& name) const {
    const std::string bytes = read_file(path(name));
    std::vector<Id> ids(bytes.size() / sizeof(Id));
    std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(Id));
    return {ids.begin(), ids.end()};
  }
};

/// The texts of the tokenizer's own cases, many times.
std::string long_text() {
  const auto cases = nlohmann::json::parse(read_file(golden("qwen2-2000") + "/cases.json"));
  std::string text;
  for (int round = 0; round < 20; ++round) {
    for (const auto& one : cases.at("cases")) {
      text += one.at("text").get<std::string>() + " and so on\n";
    }
  }
  return text;
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const std::string& text) {
  Encoder encoder(tokenizer);
  std::vector<int32_t> ids;
  encoder.encode(text, SpecialTokens::kNone, ids);
  return ids;
}

TEST_F(TokenizeVerb, WritesTheTokensOfTextWhateverTheThreads) {
  const std::string text = long_text();
  const std::string file = write("a.txt", text);
  const Tokenizer tokenizer(golden("qwen2-2000"));
  std::vector<int32_t> wanted = encoded(tokenizer, text);
  wanted.push_back(tokenizer.end().value());
  std::vector<int32_t> twice = wanted;
  twice.insert(twice.end(), wanted.begin(), wanted.end());
  for (const char* threads : {"1", "3"}) {
    const Outcome made = run(
        {"tokenize",
         file,
         file,
         "--tokenizer",
         golden("qwen2-2000"),
         "-o",
         path("a.bin"),
         "--threads",
         threads});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(ids_in<uint16_t>("a.bin"), twice);
    EXPECT_THAT(
        made.out, HasSubstr(std::to_string(twice.size()) + " tokens of 2 documents as uint16"));
  }
  Notes notes;
  const TokenFile tokens(path("a.bin"), 128, 2000, notes);
  EXPECT_EQ(tokens.size(), std::ssize(twice) / 128);
}

TEST_F(TokenizeVerb, TellsOfCutsThatTheTokenizerDoesNotAllow) {
  const Outcome made = run(
      {"tokenize",
       write("a.txt", std::string(5 << 19, ' ')), // 2.5 MiB that could be one word
       "--tokenizer",
       golden("gpt2-512"),
       "-o",
       path("a.bin")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("a.txt: cut at 2 places where the tokenizer would not be"));
}

TEST_F(TokenizeVerb, WritesWideIdsOnDemand) {
  const Outcome made = run(
      {"tokenize",
       write("a.txt", "Hello world"),
       "--tokenizer",
       golden("llama3-512"),
       "-o",
       path("a.bin"),
       "--ids",
       "uint32"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, ::testing::ContainsRegex("a token, [1-9][0-9.]* (B|[KMG]iB)/s\n"));
  const Tokenizer tokenizer(golden("llama3-512"));
  std::vector<int32_t> wanted = encoded(tokenizer, "Hello world");
  wanted.insert(wanted.begin(), tokenizer.beginning().value());
  wanted.push_back(tokenizer.end().value());
  EXPECT_EQ(ids_in<uint32_t>("a.bin"), wanted);
}

TEST_F(TokenizeVerb, ReadsRecords) {
  const std::string file = write(
      "a.jsonl",
      "\xef\xbb\xbf{\"body\": \"one\"}\r\n\r\n{\"body\": \"two\\n\", \"more\": [1]}\n{\"body\": "
      "\"3\"}");
  const Outcome made = run(
      {"tokenize",
       file,
       "--field",
       "body",
       "--tokenizer",
       golden("gpt2-512"),
       "-o",
       path("a.bin")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Tokenizer tokenizer(golden("gpt2-512"));
  std::vector<int32_t> wanted;
  for (const char* text : {"one", "two\n", "3"}) {
    const std::vector<int32_t> ids = encoded(tokenizer, text);
    wanted.insert(wanted.end(), ids.begin(), ids.end());
    wanted.push_back(tokenizer.end().value());
  }
  EXPECT_EQ(ids_in<uint16_t>("a.bin"), wanted);
}

TEST_F(TokenizeVerb, NamesFileAndLineOfWhatIsWrong) {
  const auto refused = [&](const std::string& name,
                           const std::string& text,
                           const std::string& part) {
    const Outcome made = run(
        {"tokenize", write(name, text), "--tokenizer", golden("gpt2-512"), "-o", path("a.bin")});
    EXPECT_EQ(made.exit_code, 2);
    EXPECT_THAT(made.err, HasSubstr(part));
    EXPECT_FALSE(std::filesystem::exists(path("a.bin")));
  };
  refused("a.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", "a.jsonl:2: ");
  refused("b.jsonl", "{\"text\": 7}\n", "b.jsonl:1: ");
  refused("c.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"a\"} {\"text\": \"b\"}\n", "c.jsonl:3: ");
  refused("d.txt", "one\ntwo\xff\n", "d.txt:2: ");
  refused("e.txt", "", "palimpsest: " + path("e.txt") + " is empty");
  const Outcome none =
      run({"tokenize", path("none.txt"), "--tokenizer", golden("gpt2-512"), "-o", path("a.bin")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("none.txt"));
}

TEST_F(TokenizeVerb, TrainsATokenizerWhateverTheThreads) {
  const std::string file = write("a.txt", long_text());
  std::string first;
  for (const char* threads : {"1", "3"}) {
    const std::string folder = path(std::string("tokenizer") + threads);
    const Outcome made = run(
        {"tokenize",
         file,
         "--train",
         "--vocab-size",
         "500",
         "--special",
         "<end>",
         "--special",
         "<pad>",
         "-o",
         folder,
         "--threads",
         threads});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_THAT(made.out, HasSubstr("500 tokens from "));
    const std::string json = read_file(folder + "/tokenizer.json");
    first = first.empty() ? json : first;
    EXPECT_EQ(json, first);
    const Tokenizer tokenizer(folder);
    EXPECT_EQ(tokenizer.vocabulary_size(), 500);
    EXPECT_EQ(tokenizer.end(), tokenizer.id("<end>"));
    EXPECT_EQ(tokenizer.id("<pad>"), 499);
  }
  const Outcome made =
      run({"tokenize", file, "--tokenizer", path("tokenizer1"), "-o", path("a.bin")});
  EXPECT_EQ(made.exit_code, 0) << made.err;
}

// A text that is too small for the vocabulary is found out late.
TEST_F(TokenizeVerb, LeavesNothingOfATrainingThatFails) {
  const std::string file = write("a.txt", "a word");
  std::filesystem::create_directory(folder_ / "there");
  for (const char* output : {"new/deep/t", "new/deep/t/", "there/deep/t"}) {
    const Outcome failed =
        run({"tokenize", file, "--train", "--vocab-size", "9000", "-o", path(output)});
    EXPECT_EQ(failed.exit_code, 2) << failed.out;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "new")) << output;
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "there")) << output;
  }
}

TEST_F(TokenizeVerb, RefusesWrongArguments) {
  const std::string file = write("a.txt", "some text and some more text");
  const auto refused = [&](std::vector<std::string> arguments, const std::string& part) {
    arguments.insert(arguments.begin(), {"tokenize", file});
    const Outcome made = run(arguments);
    EXPECT_EQ(made.exit_code, 2) << made.out;
    EXPECT_THAT(made.err, HasSubstr(part));
  };
  refused({"-o", path("a.bin")}, "--tokenizer is missing");
  refused({"--tokenizer", golden("gpt2-512")}, "--output is missing");
  refused({"--train", "-o", path("t")}, "--vocab-size");
  refused({"--vocab-size", "300", "-o", path("t")}, "--train");
  refused({"--train", "--vocab-size", "256", "-o", path("t")}, "give at least 257");
  refused(
      {"--train", "--vocab-size", "9000", "-o", path("t")},
      "not 9000: no further pair occurs twice");
  refused({"--train", "--vocab-size", "9000", "--tokenizer", "x", "-o", path("t")}, "excludes");
  refused({"--tokenizer", path("none"), "-o", path("a.bin")}, "none is no folder");
  refused({"--tokenizer", golden("gpt2-512"), "--ids", "uint8", "-o", path("a.bin")}, "--ids");
}

} // namespace
} // namespace palimpsest
