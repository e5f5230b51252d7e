#include <palimpsest/core/data/chat/model_template.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/golden_chats.h>
#include <palimpsest/tests/core/data/temporary_folder.h>
#include <palimpsest/tests/support/python/python.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

using JinjaTemplateTest = NeedsJinja;

void expect_golden(const std::string& folder, const TemplateTokens& tokens) {
  const auto source = model_chat_template(golden_tokenizer(folder));
  ASSERT_TRUE(source.has_value());
  const JinjaTemplate chat(source->text, tokens);
  for (const GoldenChat& golden : golden_chats(folder)) {
    const auto render = [&] {
      return golden.prompt ? chat.prompt(golden.messages)
                           : chat.render(golden.messages, golden.messages.size()).text;
    };
    if (golden.refused) {
      EXPECT_THAT(
          render,
          ThrowsMessage<UserError>(
              HasSubstr("refuses it: roles must alternate user and assistant")));
    } else {
      EXPECT_EQ(render(), golden.text);
    }
  }
}

TEST_F(JinjaTemplateTest, RendersAsTheReferenceDoes) {
  expect_golden("llama2-2000", {.bos = "<s>", .eos = "</s>"});
  expect_golden("llama3-512", {.bos = "<|begin_of_text|>", .eos = "<|end_of_text|>"});
  expect_golden("qwen2-2000", {.bos = "", .eos = "<|im_end|>"});
}

/// The texts of the assistant's spans under a template.
std::vector<std::string> written(
    const std::string& source,
    const Conversation& conversation,
    size_t first_target = 0) {
  const RenderedChat chat =
      JinjaTemplate(source, {.bos = "<s>", .eos = "</s>"}).render(conversation, first_target);
  std::vector<std::string> texts;
  for (const TextSpan& span : chat.assistant) {
    texts.push_back(chat.text.substr(
        static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin)));
  }
  return texts;
}

const Conversation kTwoTurns =
    {{"user", "u"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "b"}};

constexpr const char* kChatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST_F(JinjaTemplateTest, FindsWhatTheAssistantWrites) {
  EXPECT_THAT(written(kChatml, kTwoTurns), ElementsAre("a<|im_end|>", "b<|im_end|>"));
  EXPECT_THAT(written(kChatml, kTwoTurns, 2), ElementsAre("b<|im_end|>"));
  const auto llama2 = model_chat_template(golden_tokenizer("llama2-2000"));
  EXPECT_THAT(written(llama2->text, kTwoTurns), ElementsAre(" a </s>", " b </s>"));
  // A prompt that opens the turn with something that this turn has not.
  EXPECT_THAT(
      written(
          "{% for m in messages %}[{{ m.role }}]{{ m.content }}|{% endfor %}"
          "{% if add_generation_prompt %}[assistant]<think>{% endif %}",
          kTwoTurns),
      ElementsAre("a|", "b|"));
  // Marks of the reference's own masks are passed over.
  EXPECT_THAT(
      written(
          "{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.content }}{% endgeneration "
          "%}|{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
          kTwoTurns),
      ElementsAre("a|", "b|"));
}

TEST_F(JinjaTemplateTest, RefusesTargetsThatMoveAsOthersFollow) {
  const auto thinking = [](const std::string& condition) {
    return "{% for m in messages %}[{{ m.role }}]{% if " + condition +
        " %}<think>{% endif %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}";
  };
  const std::string last_answer = thinking("loop.last and m.role == 'assistant'");
  const auto refused = ThrowsMessage<UserError>(HasSubstr("differently once others follow"));
  EXPECT_THAT([&] { written(last_answer, kTwoTurns); }, refused);
  EXPECT_THAT(written(last_answer, kTwoTurns, 2), ElementsAre("<think>b"));
  EXPECT_THAT([&] { written(thinking("loop.last"), kTwoTurns, 2); }, refused);
}

TEST(ModelChatTemplate, IsFoundWhereModelsKeepIt) {
  const TemporaryFolder folder;
  EXPECT_FALSE(model_chat_template(folder.path()).has_value());
  const auto config = [&](const std::string& text) { folder.write("tokenizer_config.json", text); };
  config("{}");
  EXPECT_FALSE(model_chat_template(folder.path()).has_value());
  config(R"({"chat_template":"x"})");
  EXPECT_EQ(model_chat_template(folder.path())->text, "x");
  EXPECT_EQ(model_chat_template(folder.path())->file, folder.path() / "tokenizer_config.json");
  config(R"({"chat_template":[{"name":"rag","template":"r"},{"name":"default","template":"d"}]})");
  EXPECT_EQ(model_chat_template(folder.path())->text, "d");
  config(R"({"chat_template":[{"name":"rag","template":"r"}]})");
  EXPECT_THAT(
      [&] { model_chat_template(folder.path()); },
      ThrowsMessage<UserError>(HasSubstr("tokenizer_config.json: chat_template is neither")));
  folder.write("chat_template.jinja", std::string("file"));
  EXPECT_EQ(model_chat_template(folder.path())->text, "file");
  EXPECT_EQ(model_chat_template(folder.path())->file, folder.path() / "chat_template.jinja");
}

TEST(ModelChatTemplate, IsUtf8OrRefusedWithItsLine) {
  const TemporaryFolder folder;
  const auto file = folder.write("chat_template.jinja", std::string("{# \xc3\xa4 #}\n\nx\xff"));
  EXPECT_THAT(
      [&] { model_chat_template(folder.path()); },
      ThrowsMessage<UserError>(
          HasSubstr(file.string() + ":3: byte 12 of the file (0xFF) is no UTF-8")));
}

} // namespace
} // namespace palimpsest
