// Covers: launcher/compose/generation_text.cc
// Covers: launcher/compose/generation_inputs.cc
#include <palimpsest/launcher/compose/generation_inputs.h>
#include <palimpsest/launcher/compose/generation_text.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gmock/gmock.h>

#include <fstream>
#include <set>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kTokenizers = std::string(PALIMPSEST_TEST_DATA) + "/tokenizers/";

class GenerationTextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = make_temporary_folder();
  }
  void TearDown() override {
    fs::remove_all(folder_);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  /// A tokenizer's folder with another file beside.
  fs::path with_file(const std::string& tokenizer, const std::string& name, const std::string& text)
      const {
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(
          kTokenizers + tokenizer + "/" + file,
          folder_ / file,
          fs::copy_options::overwrite_existing);
    }
    write(name, text);
    return folder_;
  }
  static std::string error_of(const std::function<void()>& part) {
    try {
      part();
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
};

/// All pieces of the bytes of `text`, one by one, and what is held back at the end.
std::vector<std::string> pieces(
    const GenerationText& bytes,
    const std::string& text,
    const std::vector<std::string>& stops) {
  GeneratedText generated = bytes.begin(stops);
  std::vector<std::string> all;
  for (const char byte : text) {
    all.push_back(generated.push(static_cast<uint8_t>(byte)));
  }
  all.push_back(generated.finish());
  return all;
}

TEST_F(GenerationTextTest, AStopStringEndsTheTextAndIsNoPartOfIt) {
  const GenerationText bytes(folder_, "", 256);
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces(bytes, "abc", {}), (Pieces{"a", "b", "c", ""}));
  // "xy" may begin the stop string until "a" comes
  EXPECT_EQ(pieces(bytes, "xyaxyz!", {"xyz"}), (Pieces{"", "", "xya", "", "", "", "", ""}));
  // what is held back belongs to the text where it ends before
  EXPECT_EQ(pieces(bytes, "axy", {"xyz"}), (Pieces{"a", "", "", "xy"}));
  // the first of several; one that overlaps itself
  EXPECT_EQ(pieces(bytes, "a1b", {"b", "1"}), (Pieces{"a", "", "", ""}));
  EXPECT_EQ(pieces(bytes, "aaab", {"aab"}), (Pieces{"", "", "a", "", ""}));
  // a character comes whole
  EXPECT_EQ(pieces(bytes, "\xC3\xA4", {}), (Pieces{"", "\xC3\xA4", ""}));
  EXPECT_EQ(pieces(bytes, "\xC3", {}), (Pieces{"", "\xEF\xBF\xBD"}));
}

TEST_F(GenerationTextTest, APromptBeginsAsTheTokenizerBeginsTexts) {
  const GenerationText llama3(kTokenizers + "llama3-512", "", 512);
  const Tokenizer tokenizer(kTokenizers + "llama3-512");
  const std::vector<int32_t> ids = llama3.encode("Once");
  EXPECT_EQ(ids.front(), *tokenizer.beginning());
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokens::kNone), "Once");
  EXPECT_EQ(llama3.encode("").size(), 1U); // the beginning alone is something to go on from
  const GenerationText gpt2(kTokenizers + "gpt2-512", "", 512);
  EXPECT_THAT(error_of([&] { gpt2.encode(""); }), HasSubstr("the prompt is empty"));
  EXPECT_THAT(error_of([&] { gpt2.encode("\xFF"); }), HasSubstr("UTF-8"));
}

// A model may have more ids than the tokenizer has tokens, but not fewer.
TEST_F(GenerationTextTest, ATokenizerFitsTheModelsVocabulary) {
  EXPECT_EQ(GenerationText(kTokenizers + "gpt2-512", "", 512).token_count(), 512);
  EXPECT_EQ(GenerationText(kTokenizers + "gpt2-512", "", 576).token_count(), 512);
  EXPECT_EQ(GenerationText(folder_, "", 256).token_count(), 256); // bytes
  EXPECT_THAT(
      error_of([&] { GenerationText(kTokenizers + "gpt2-512", "", 511); }),
      HasSubstr("gpt2-512 has 512 tokens, and the model's vocabulary 511; name the folder"));
}

TEST_F(GenerationTextTest, TextsEndWhereTheModelsFilesSay) {
  const Tokenizer tokenizer(kTokenizers + "gpt2-512");
  const int32_t own = *tokenizer.end();
  const auto ends = [&](const std::string& name, const std::string& text) {
    return GenerationText(with_file("gpt2-512", name, text), "", 512).end_ids();
  };
  EXPECT_EQ(ends("config.json", R"({"eos_token_id": 7})"), (std::set<int32_t>{7, own}));
  EXPECT_EQ(
      ends("generation_config.json", R"({"eos_token_id": [8, 9]})"),
      (std::set<int32_t>{8, 9, own})); // and the config's no more
  EXPECT_EQ(
      ends("generation_config.json", R"({"eos_token_id": null})"), (std::set<int32_t>{7, own}));
  EXPECT_THAT(
      error_of([&] { ends("generation_config.json", R"({"eos_token_id": "</s>"})"); }),
      HasSubstr("generation_config.json: eos_token_id is"));
}

TEST_F(GenerationTextTest, ATurnEndsWithWhatTheTemplatePutsThere) {
  const GenerationText llama3(kTokenizers + "llama3-512", "llama3", 512);
  const Tokenizer tokenizer(kTokenizers + "llama3-512");
  EXPECT_EQ(llama3.turn_end().ids, std::set<int32_t>{*tokenizer.id("<|eot_id|>")});
  EXPECT_TRUE(llama3.turn_end().texts.empty());
  // A tokenizer without that token writes it letter by letter.
  const GenerationText gpt2(kTokenizers + "gpt2-512", "chatml", 512);
  EXPECT_TRUE(gpt2.turn_end().ids.empty());
  EXPECT_EQ(gpt2.turn_end().texts, std::vector<std::string>{"<|im_end|>"});
  const GenerationText none(kTokenizers + "gpt2-512", "", 512);
  EXPECT_TRUE(none.turn_end().ids.empty());
  EXPECT_THAT(
      error_of([&] {
        none.encode(Conversation{{"user", "Hi"}});
      }),
      HasSubstr("--chat-template"));
}

TEST_F(GenerationTextTest, OnlyAModelOfBytesNeedsNoTokenizer) {
  const GenerationText bytes(folder_, "", 256);
  EXPECT_EQ(bytes.encode("a\xC3\xA4"), (std::vector<int32_t>{'a', 0xC3, 0xA4}));
  EXPECT_THAT(
      error_of([&] { GenerationText(folder_, "", 512); }),
      HasSubstr("has no tokenizer.json; name the tokenizer's folder with data.tokenizer=FOLDER"));
}

TEST_F(GenerationTextTest, PromptsAreLinesOrRecords) {
  const std::string text = write("p.txt", "\xEF\xBB\xBFone\r\ntwo words\nlast");
  const auto lines = read_prompts(text);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(std::get<std::string>(lines[0].prompt), "one");
  EXPECT_EQ(std::get<std::string>(lines[1].prompt), "two words");
  EXPECT_EQ(lines[2].where, text + ":3");
  const auto records =
      read_prompts(write("p.jsonl", "{\"prompt\": \"a\\nb\"}\n\n{\"prompt\": \"c\"}\n"));
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(std::get<std::string>(records[0].prompt), "a\nb");
  EXPECT_THAT(records[1].where, HasSubstr("p.jsonl:3"));
}

TEST_F(GenerationTextTest, SaysWhereAPromptIsNone) {
  const auto prompts = [&](const std::string& name, const std::string& text) {
    return error_of([&] { read_prompts(write(name, text)); });
  };
  EXPECT_THAT(prompts("p.txt", "one\n\ntwo\n"), HasSubstr("p.txt:2: the prompt is empty"));
  EXPECT_THAT(prompts("p.txt", ""), HasSubstr("p.txt is empty; give a prompt a line"));
  EXPECT_THAT(prompts("p.jsonl", "{\"text\": \"a\"}"), HasSubstr("p.jsonl:1: a record needs"));
  EXPECT_THAT(prompts("p.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": 1}"), HasSubstr("p.jsonl:2:"));
  EXPECT_THAT(prompts("p.jsonl", "{\"prompt\": \"a\"\n"), HasSubstr("p.jsonl:1:"));
}

TEST_F(GenerationTextTest, ConversationsAreRecordsOrOneArray) {
  const auto records = read_conversations(write(
      "c.jsonl",
      R"({"messages": [{"role": "user", "content": "a"}]})"
      "\n"
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}]})"));
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(std::get<Conversation>(records[1].prompt)[1].content, "b");
  const auto one = read_conversations(write(
      "c.json",
      "[\n{\"role\": \"system\", \"content\": \"s\"},\n{\"role\": \"user\", \"content\": "
      "\"a\"}\n]"));
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(std::get<Conversation>(one[0].prompt).size(), 2U);

  const auto conversations = [&](const std::string& text) {
    return error_of([&] { read_conversations(write("bad.jsonl", text)); });
  };
  EXPECT_THAT(
      conversations(R"({"messages": [{"role": "assistant", "content": "a"}]})"),
      HasSubstr("bad.jsonl:1: the last message is the assistant's"));
  EXPECT_EQ(
      error_of([&] { read_conversations(folder_ / "none.json"); }),
      "--messages: " + (folder_ / "none.json").string() +
          ": there is no such file; give a file of records");
  EXPECT_THAT(conversations("{\"messages\": []}"), HasSubstr("bad.jsonl:1:"));
  EXPECT_THAT(conversations(R"({"messages": [{"role": "user"}]})"), HasSubstr("bad.jsonl:1:"));
}

} // namespace
} // namespace palimpsest
