#include <palimpsest/core/data/examples/record_examples.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/examples/toy_encoder.h>
#include <palimpsest/tests/core/data/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::ThrowsMessage;

const TemplateTokens kTokens = {.bos = "<s>", .eos = "</s>"};

RecordExamples open(
    const std::vector<std::filesystem::path>& paths,
    const std::string& format,
    std::shared_ptr<const ChatTemplate> chat = nullptr) {
  return {
      paths,
      RecordFormat(format, {}),
      ExampleText(std::move(chat), LossOn::kAssistant),
      toy_encoder({"<s>", "</s>"}, kTokens)};
}

TEST(RecordExamples, ReadTheRecordsOfAllFiles) {
  const TemporaryFolder folder;
  const RecordExamples examples = open(
      {folder.write("a.jsonl", "{\"prompt\":\"p\",\"completion\":\"c\"}\n\n"),
       folder.write("b.json", "[{\"prompt\":\"q\",\"completion\":\"\"}]")},
      "prompt_completion");
  ASSERT_EQ(examples.size(), 2);
  EXPECT_THAT(examples.read(0).ids, ElementsAre(256, 'p', 'c', 257));
  EXPECT_THAT(examples.read(0).targets, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(examples.read(1).ids, ElementsAre(256, 'q', 257));
  EXPECT_THAT(examples.read(1).targets, ElementsAre(0, 0, 1));
  EXPECT_THAT(examples.location(1), EndsWith("b.json:1"));
  EXPECT_THAT(examples.name(), EndsWith("a.jsonl"));
}

TEST(RecordExamples, SayWhereSomethingIsWrong) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& lines, const std::string& part) {
    const RecordExamples examples =
        open({folder.write("a.jsonl", lines)}, "messages", named_chat_template("mistral", kTokens));
    EXPECT_THAT([&] { examples.read(1); }, ThrowsMessage<UserError>(HasSubstr(part)));
  };
  const std::string good = R"({"messages":[{"role":"user","content":"u"}]})";
  refused(good + "\n\n{\"text\":\"x\"}\n", "a.jsonl:3: the key \"messages\" is missing");
  refused(good + "\n{\"messages\":[}\n", "a.jsonl:2: ");
  refused(
      good + "\r\n\r\n" + R"({"messages":"x"})",
      "a.jsonl:3: \"messages\" is string, but must be a list");
  refused(
      good + "\n" + R"({"messages":[{"role":"user","content":7}]})",
      "a.jsonl:2: \"content\" is number, but must be text");
  refused(
      good + "\n" + R"({"messages":[{"role":"assistant","content":"a"}]})",
      "a.jsonl:2: message 1 is of the role assistant");
}

} // namespace
} // namespace palimpsest
