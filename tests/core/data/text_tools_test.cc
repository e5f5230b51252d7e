#include <palimpsest/core/data/text_tools.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/examples/text_examples.h>
#include <palimpsest/tests/core/data/golden_chats.h>
#include <palimpsest/tests/core/data/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

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

TEST(TextTools, RenderAndEncodeAsTheReferenceDoes) {
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

TEST(TextTools, ChooseTheTemplate) {
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

TEST(TextTools, EncodeAFileInPiecesAsAWhole) {
  const TemporaryFolder folder;
  const std::string text = random_text(60'000);
  const auto path = folder.write("a.txt", text);
  for (const char* name : {"gpt2-512", "llama2-512", "llama2-2000", "llama3-2000", "qwen2-2000"}) {
    const auto encoder = open_text_encoder(golden_tokenizer(name));
    const TextExamples examples({path}, *encoder);
    EXPECT_EQ(examples.forced_cuts(), 0) << name;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < examples.size(); ++i) {
      const std::vector<int32_t> piece = examples.read(i).ids;
      ids.insert(ids.end(), piece.begin(), piece.end());
    }
    const TemplateTokens around = encoder->around();
    EXPECT_EQ(ids, encoder->encode(around.bos + text + around.eos)) << name;
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
