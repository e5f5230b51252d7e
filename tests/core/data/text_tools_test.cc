#include <palimpsest/core/data/text_tools.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/examples/record_examples.h>
#include <palimpsest/core/data/examples/text_examples.h>
#include <palimpsest/tests/core/data/golden_chats.h>
#include <palimpsest/tests/core/data/temporary_folder.h>
#include <palimpsest/tests/support/python/python.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using JinjaTextTools = NeedsJinja;

TEST(TextTools, OpenWhatAModelFolderHolds) {
  const auto llama3 = open_text_encoder(golden_tokenizer("llama3-512"));
  ASSERT_TRUE(llama3.has_value());
  EXPECT_EQ(llama3->tokens.bos, "<|begin_of_text|>");
  EXPECT_EQ(llama3->tokens.eos, "<|end_of_text|>");
  EXPECT_TRUE(llama3->adds_bos);
  EXPECT_EQ(llama3->around().bos, "<|begin_of_text|>");
  const auto gpt2 = open_text_encoder(golden_tokenizer("gpt2-512"));
  EXPECT_EQ(gpt2->tokens.bos, "<|endoftext|>"); // named, but not put before a text
  EXPECT_FALSE(gpt2->adds_bos);
  EXPECT_EQ(gpt2->around().bos, "");
  EXPECT_EQ(gpt2->around().eos, "<|endoftext|>");
  const auto qwen2 = open_text_encoder(golden_tokenizer("qwen2-512"));
  EXPECT_EQ(qwen2->tokens.bos, "");
  EXPECT_EQ(qwen2->around().eos, "<|im_end|>");
  EXPECT_FALSE(open_text_encoder("").has_value());
  const TemporaryFolder empty;
  EXPECT_FALSE(open_text_encoder(empty.path()).has_value());
}

TEST(TextTools, RefuseATokenizerLargerThanTheModel) {
  require_fitting_tokenizer("words", 512, 512);
  require_fitting_tokenizer("words", 512, 600);
  EXPECT_THAT(
      [] { require_fitting_tokenizer("words", 512, 511); },
      ThrowsMessage<UserError>(
          HasSubstr("data.tokenizer: the tokenizer of words has 512 tokens, and the model's "
                    "vocabulary 511; name the folder of")));
}

TEST_F(JinjaTextTools, RenderAndEncodeAsTheReferenceDoes) {
  for (const char* name : {"llama2-2000", "llama3-512", "llama3-2000", "qwen2-512", "qwen2-2000"}) {
    const std::filesystem::path folder = golden_tokenizer(name);
    const auto encoder = open_text_encoder(folder);
    const auto chat = open_chat_template({.folder = folder}, *encoder);
    int rendered = 0;
    for (const GoldenChat& golden : golden_chats(name)) {
      if (golden.refused) {
        continue;
      }
      const std::string text = golden.prompt
          ? chat->prompt(golden.messages)
          : chat->render(golden.messages, golden.messages.size()).text;
      EXPECT_EQ(encoder->encode(text), golden.ids) << name;
      ++rendered;
    }
    EXPECT_GT(rendered, 25);
  }
}

TEST_F(JinjaTextTools, ChooseTheTemplate) {
  const TemporaryFolder folder;
  const auto encoder = open_text_encoder(golden_tokenizer("llama3-512"));
  const Conversation question = {{"user", "u"}};
  EXPECT_EQ(
      open_chat_template({.name = "mistral", .folder = golden_tokenizer("llama3-512")}, *encoder)
          ->prompt(question),
      "<|begin_of_text|>[INST] u[/INST]");
  const auto file = folder.write("own.jinja", "{{ messages[0].content }}?{{ eos_token }}");
  EXPECT_EQ(
      open_chat_template({.name = file.string()}, *encoder)->prompt(question), "u?<|end_of_text|>");
  EXPECT_EQ(open_chat_template({.folder = golden_tokenizer("gpt2-512")}, *encoder), nullptr);
  EXPECT_EQ(open_chat_template({}, *encoder), nullptr);
  EXPECT_THAT(
      [&] { open_chat_template({.name = "nothing.jinja"}, *encoder); },
      ThrowsMessage<UserError>(HasSubstr("\"nothing.jinja\" is no template and no file")));
  const auto broken = folder.write("broken.jinja", "{% if %}");
  EXPECT_THAT(
      [&] { open_chat_template({.name = broken.string()}, *encoder); },
      ThrowsMessage<UserError>(HasSubstr(broken.string() + ": the chat template is no valid")));
}

/// Words, runs of space and letters of several scripts.
std::string random_text(size_t size) {
  static constexpr const char* kParts[] = {
      "the ",
      "checkpoint",
      " of",
      "\n",
      "\n\n  ",
      "   ",
      "\r\n",
      "é",
      "日本 語",
      "123",
      "'ll ",
      "...",
      "<|im_end|>",
      "\t",
      " a",
      "Palimpsest "};
  std::mt19937 random(11);
  std::string text;
  while (text.size() < size) {
    text += kParts[random() % std::size(kParts)];
  }
  return text;
}

/// The reference's tokens of a text, and the token that ends a document where it adds none.
std::vector<int32_t> as_document(std::vector<int32_t> ids, const Tokenizer& tokenizer) {
  const int32_t end = tokenizer.end().value();
  if (tokenizer.suffix() != std::vector{end}) {
    ids.push_back(end);
  }
  return ids;
}

TEST(TextTools, EncodeDocumentsAsTheReferenceDoes) {
  const TemporaryFolder folder;
  for (const char* name :
       {"gpt2-512",
        "gpt2-2000",
        "llama2-512",
        "llama2-2000",
        "llama3-512",
        "llama3-2000",
        "qwen2-512",
        "qwen2-2000"}) {
    const Tokenizer tokenizer(golden_tokenizer(name));
    const auto cases =
        nlohmann::json::parse(read_file(golden_tokenizer(name) / "cases.json"))["cases"];
    std::string documents;
    std::string completions; // the same texts, in two parts
    for (const auto& item : cases) {
      const std::string text = item["text"];
      documents += nlohmann::json{{"text", text}}.dump() + "\n";
      size_t half = text.size() / 2;
      while (half < text.size() && (static_cast<unsigned char>(text[half]) & 0xC0U) == 0x80U) {
        ++half;
      }
      completions +=
          nlohmann::json{{"prompt", text.substr(0, half)}, {"completion", text.substr(half)}}
              .dump() +
          "\n";
    }
    const auto open = [&](const char* file, const std::string& lines, const char* format) {
      return RecordExamples(
          {folder.write(file, lines)},
          RecordFormat(format, {}),
          ExampleText(nullptr, LossOn::kAssistant),
          *open_text_encoder(golden_tokenizer(name)));
    };
    const RecordExamples texts = open("a.jsonl", documents, "text");
    const RecordExamples pairs = open("b.jsonl", completions, "prompt_completion");
    int64_t at = 0;
    for (const auto& item : cases) {
      const auto ids = as_document(item["ids"].get<std::vector<int32_t>>(), tokenizer);
      EXPECT_EQ(texts.read(at).ids, ids) << name << " " << item["text"];
      const TokenExample pair = pairs.read(at++);
      EXPECT_EQ(pair.ids, ids) << name << " " << item["text"];
      EXPECT_EQ(pair.targets.back(), 1) << name << " " << item["text"];
    }
    EXPECT_GT(at, 300);
  }
}

TEST(TextTools, EncodeAFileInPiecesAsAWhole) {
  const TemporaryFolder folder;
  const std::string text = random_text(60'000);
  const auto path = folder.write("a.txt", text);
  for (const char* name : {"gpt2-512", "llama2-512", "llama2-2000", "llama3-2000", "qwen2-2000"}) {
    const Tokenizer tokenizer(golden_tokenizer(name));
    const auto encoder = open_text_encoder(golden_tokenizer(name));
    const TextExamples examples({path}, *encoder);
    EXPECT_EQ(examples.forced_cuts(), 0) << name;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < examples.size(); ++i) {
      const std::vector<int32_t> piece = examples.read(i).ids;
      ids.insert(ids.end(), piece.begin(), piece.end());
    }
    std::vector<int32_t> whole;
    Encoder(tokenizer).encode(text, SpecialTokens::kAdd, whole);
    EXPECT_EQ(ids, as_document(whole, tokenizer)) << name;
  }
}

TEST(TextTools, ServeSeveralThreads) {
  const auto encoder = open_text_encoder(golden_tokenizer("qwen2-2000"));
  const std::string text = random_text(5000);
  const std::vector<int32_t> ids = encoder->encode(text);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(encoder->encode(text), ids);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

} // namespace
} // namespace palimpsest
