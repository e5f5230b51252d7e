#include <palimpsest/core/data/examples/example_text.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

const TemplateTokens kTokens = {.bos = "<s>", .eos = "</s>"};

const Conversation kTwoTurns =
    {{"user", "u"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "b"}, {"user", "w"}};

TargetText render(const Example& example, LossOn loss_on, const char* chat = nullptr) {
  std::shared_ptr<const ChatTemplate> named;
  if (chat != nullptr) {
    named = named_chat_template(chat, kTokens);
  }
  return ExampleText(named, loss_on).render(example);
}

std::vector<std::string> targets(const TargetText& text) {
  std::vector<std::string> parts;
  for (const TextSpan& span : text.targets) {
    parts.push_back(text.text.substr(
        static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin)));
  }
  return parts;
}

TEST(ExampleText, ChoosesTheTargetsOfAConversation) {
  const auto learnt = [](LossOn loss_on) { return targets(render(kTwoTurns, loss_on, "plain")); };
  EXPECT_EQ(render(kTwoTurns, LossOn::kAssistant, "plain").text, "<s>u\na</s>\nv\nb</s>\nw\n");
  EXPECT_THAT(learnt(LossOn::kAssistant), ElementsAre("a</s>", "b</s>"));
  EXPECT_THAT(learnt(LossOn::kLast), ElementsAre("b</s>"));
  EXPECT_THAT(learnt(LossOn::kAll), ElementsAre("<s>u\na</s>\nv\nb</s>\nw\n"));
  const Conversation question = {{"user", "u"}};
  EXPECT_THAT(targets(render(question, LossOn::kAssistant, "plain")), IsEmpty());
  EXPECT_THAT(targets(render(question, LossOn::kLast, "plain")), IsEmpty());
  EXPECT_THAT(
      targets(render(Conversation{{"assistant", "a"}}, LossOn::kLast, "plain")),
      ElementsAre("a</s>"));
}

TEST(ExampleText, LeavesWhatStandsAroundDocumentsAndCompletionsToTheTokenizer) {
  const TargetText document = render(Document{"d"}, LossOn::kAssistant);
  EXPECT_EQ(document.text, "d");
  EXPECT_TRUE(document.surrounded);
  EXPECT_THAT(targets(document), ElementsAre("d"));
  const Completion completion{"p ", "c"};
  EXPECT_EQ(render(completion, LossOn::kAssistant).text, "p c");
  EXPECT_TRUE(render(completion, LossOn::kAssistant).surrounded);
  EXPECT_THAT(targets(render(completion, LossOn::kAssistant)), ElementsAre("c"));
  EXPECT_THAT(targets(render(completion, LossOn::kLast)), ElementsAre("c"));
  EXPECT_THAT(targets(render(completion, LossOn::kAll)), ElementsAre("p c"));
  EXPECT_FALSE(render(kTwoTurns, LossOn::kAll, "plain").surrounded);
}

TEST(ExampleText, TurnsACompletionIntoAConversationUnderATemplate) {
  const TargetText text = render(Completion{"p", "c"}, LossOn::kAssistant, "mistral");
  EXPECT_EQ(text.text, "<s>[INST] p[/INST] c</s>");
  EXPECT_THAT(targets(text), ElementsAre(" c</s>"));
}

TEST(ExampleText, NeedsATemplateForConversations) {
  EXPECT_THAT(
      [] { render(kTwoTurns, LossOn::kAssistant); },
      ThrowsMessage<UserError>(HasSubstr("name one in data.chat_template: chatml, llama2")));
}

} // namespace
} // namespace palimpsest
