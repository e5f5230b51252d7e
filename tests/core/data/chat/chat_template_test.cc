#include <palimpsest/core/data/chat/chat_template.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/golden_chats.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// The texts of the assistant's spans.
std::vector<std::string> written(const RenderedChat& chat) {
  std::vector<std::string> texts;
  for (const TextSpan& span : chat.assistant) {
    texts.push_back(chat.text.substr(
        static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin)));
  }
  return texts;
}

const Conversation kTwoTurns =
    {{"system", "S"}, {"user", "u"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "b"}};

std::unique_ptr<ChatTemplate> named(const std::string& name) {
  return named_chat_template(name, {.bos = "<s>", .eos = "</s>"});
}

/// Whether the template gives all the reference's texts, and refuses what it refuses.
void expect_golden(const ChatTemplate& chat, const std::string& folder, bool add_system = false) {
  for (GoldenChat& golden : golden_chats(folder)) {
    if (add_system && golden.messages.front().role != "system") {
      golden.messages.insert(golden.messages.begin(), {"system", "You answer briefly."});
    }
    const auto render = [&] {
      return golden.prompt ? chat.prompt(golden.messages) : chat.render(golden.messages).text;
    };
    if (golden.refused) {
      EXPECT_THROW(render(), UserError);
    } else {
      EXPECT_EQ(render(), golden.text);
    }
  }
}

TEST(NamedTemplates, RenderAsTheReferenceDoes) {
  expect_golden(
      *named_chat_template("llama3", {.bos = "<|begin_of_text|>", .eos = "<|end_of_text|>"}),
      "llama3-512");
  expect_golden(*named("llama2"), "llama2-2000");
  expect_golden(*named("chatml"), "qwen2-512", /*add_system=*/true);
  expect_golden(*named("qwen"), "qwen2-512", /*add_system=*/true);
}

TEST(NamedTemplates, WriteTwoTurns) {
  const auto text = [](const char* name) { return named(name)->render(kTwoTurns).text; };
  EXPECT_EQ(
      text("chatml"),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
      "a<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n");
  EXPECT_EQ(
      text("llama2"),
      "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nu [/INST] a </s><s>[INST] v [/INST] b </s>");
  EXPECT_EQ(
      text("llama3"),
      "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user"
      "<|end_header_id|>\n\nu<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\na<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nv<|eot_id|><|start_header_id|>assistant"
      "<|end_header_id|>\n\nb<|eot_id|>");
  EXPECT_EQ(text("mistral"), "<s>[INST] S\n\nu[/INST] a</s>[INST] v[/INST] b</s>");
  EXPECT_EQ(
      text("gemma"),
      "<s><start_of_turn>user\nS\n\nu<end_of_turn>\n<start_of_turn>model\na<end_of_turn>\n"
      "<start_of_turn>user\nv<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n");
  EXPECT_EQ(text("qwen"), text("chatml"));
  EXPECT_EQ(
      text("alpaca"),
      "<s>S\n\n### Instruction:\nu\n\n### Response:\na</s>\n\n### Instruction:\nv\n\n### "
      "Response:\n"
      "b</s>\n\n");
  EXPECT_EQ(text("plain"), "<s>S\nu\na</s>\nv\nb</s>\n");
}

TEST(NamedTemplates, SayWhatTheAssistantWritesWithItsEnd) {
  const auto texts = [](const char* name) { return written(named(name)->render(kTwoTurns)); };
  EXPECT_THAT(texts("chatml"), ElementsAre("a<|im_end|>", "b<|im_end|>"));
  EXPECT_THAT(texts("llama2"), ElementsAre(" a </s>", " b </s>"));
  EXPECT_THAT(texts("llama3"), ElementsAre("a<|eot_id|>", "b<|eot_id|>"));
  EXPECT_THAT(texts("mistral"), ElementsAre(" a</s>", " b</s>"));
  EXPECT_THAT(texts("gemma"), ElementsAre("a<end_of_turn>", "b<end_of_turn>"));
  EXPECT_THAT(texts("qwen"), ElementsAre("a<|im_end|>", "b<|im_end|>"));
  EXPECT_THAT(texts("alpaca"), ElementsAre("a</s>", "b</s>"));
  EXPECT_THAT(texts("plain"), ElementsAre("a</s>", "b</s>"));
  EXPECT_THAT(written(named("chatml")->render(kTwoTurns, 3)), ElementsAre("b<|im_end|>"));
}

TEST(NamedTemplates, PromptForWhatTheAssistantThenWrites) {
  const Conversation question(kTwoTurns.begin(), kTwoTurns.begin() + 4);
  for (const std::string& name : named_chat_templates()) {
    const RenderedChat whole = named(name)->render(kTwoTurns);
    EXPECT_EQ(
        named(name)->prompt(question),
        whole.text.substr(0, static_cast<size_t>(whole.assistant.back().begin)))
        << name;
  }
}

TEST(NamedTemplates, OpenWithTheirDefaults) {
  const Conversation question = {{"user", "u"}};
  EXPECT_EQ(
      named("qwen")->prompt(question),
      "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
      "assistant.<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(
      named("alpaca")->prompt(question),
      "<s>Below is an instruction that describes a task. Write a response that appropriately "
      "completes the request.\n\n### Instruction:\nu\n\n### Response:\n");
  EXPECT_EQ(
      named("alpaca")->prompt({{"user", "u", "x"}}),
      "<s>Below is an instruction that describes a task, paired with an input that provides "
      "further "
      "context. Write a response that appropriately completes the request.\n\n### Instruction:\nu"
      "\n\n### Input:\nx\n\n### Response:\n");
  EXPECT_EQ(named("plain")->prompt({{"user", "u", "x"}}), "<s>u\n\nx\n");
}

TEST(NamedTemplates, RefuseRolesThatTheyHaveNoPlaceFor) {
  const auto refused =
      [](const char* name, const Conversation& conversation, const std::string& part) {
        EXPECT_THAT(
            [&] { named(name)->render(conversation); }, ThrowsMessage<UserError>(HasSubstr(part)));
      };
  refused("chatml", {{"tool", "x"}}, "message 1 is of the role \"tool\"");
  refused("chatml", {}, "no message");
  refused("mistral", {{"user", "x"}, {"user", "y"}}, "message 2 is of the role user");
  refused("gemma", {{"assistant", "x"}}, "it must be user");
  refused("llama2", {{"user", "x"}, {"system", "y"}}, "message 2 is of the role system");
  refused("llama2", {{"system", "y"}}, "a system message alone");
  EXPECT_THAT(
      [] { named("vicuna"); },
      ThrowsMessage<UserError>(
          HasSubstr("chatml, llama2, llama3, mistral, gemma, qwen, alpaca, plain")));
  EXPECT_THAT(
      [] { named_chat_template("mistral", {}); },
      ThrowsMessage<UserError>(HasSubstr("the tokenizer names none")));
  named_chat_template("chatml", {});
}

TEST(Strip, CountsSpaceAsPythonDoes) {
  EXPECT_EQ(
      strip(" \t\n\r\v\f\x1c\x1f"
            "a b\xc2\xa0\xe3\x80\x80\xe2\x80\xa9\xc2\x85"),
      "a b");
  EXPECT_EQ(
      strip("\xe2\x80\x8b"
            "a"),
      "\xe2\x80\x8b"
      "a"); // zero width space is none
  EXPECT_EQ(strip("\xc3\x85"), "\xc3\x85");
  EXPECT_EQ(strip("  "), "");
}

} // namespace
} // namespace palimpsest
