#include <palimpsest/core/data/records/record_format.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Example read(const std::string& format, const std::string& record, Columns columns = {}) {
  return RecordFormat(format, std::move(columns)).example(nlohmann::json::parse(record));
}

/// "role: content" of each message, "| input" where there is one.
std::vector<std::string> turns(const Example& example) {
  std::vector<std::string> all;
  for (const Message& message : std::get<Conversation>(example)) {
    all.push_back(
        message.role + ": " + message.content +
        (message.input.empty() ? "" : " | " + message.input));
  }
  return all;
}

using Turns = std::vector<std::string>;

TEST(RecordFormat, ReadsTextAndCompletions) {
  EXPECT_EQ(std::get<Document>(read("text", R"({"text":"a","id":3})")).text, "a");
  const auto completion =
      std::get<Completion>(read("prompt_completion", R"({"prompt":"p","completion":"c"})"));
  EXPECT_EQ(completion.prompt, "p");
  EXPECT_EQ(completion.completion, "c");
}

TEST(RecordFormat, ReadsConversations) {
  EXPECT_EQ(
      turns(read(
          "messages",
          R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},
              {"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})")),
      (Turns{"system: s", "user: u", "assistant: ab"}));
  EXPECT_EQ(
      turns(read(
          "sharegpt",
          R"({"system":"s","conversations":[{"from":"human","value":"u"},{"from":"gpt","value":"a"}]})")),
      (Turns{"system: s", "user: u", "assistant: a"}));
}

TEST(RecordFormat, ReadsInstructions) {
  EXPECT_EQ(
      turns(read("alpaca", R"({"instruction":"i","input":"","output":"o"})")),
      (Turns{"user: i", "assistant: o"}));
  EXPECT_EQ(
      turns(read("alpaca", R"({"instruction":"i","input":"x","output":"o","system":"s",
                               "history":[["q","r"]]})")),
      (Turns{"system: s", "user: q", "assistant: r", "user: i | x", "assistant: o"}));
  EXPECT_EQ(
      turns(read("alpaca", R"({"instruction":"i","input":null,"output":"o"})")),
      (Turns{"user: i", "assistant: o"}));
}

TEST(RecordFormat, MapsColumns) {
  const auto completion = std::get<Completion>(read(
      "prompt_completion",
      R"({"question":"p","completion":"c","prompt":"other"})",
      {{"prompt", "question"}}));
  EXPECT_EQ(completion.prompt, "p");
  EXPECT_EQ(
      turns(read(
          "messages",
          R"({"chat":[{"who":"user","content":"u"}]})",
          {{"messages", "chat"}, {"role", "who"}})),
      (Turns{"user: u"}));
}

TEST(RecordFormat, SaysWhatIsWrong) {
  const auto refused = [](const std::string& format,
                          const std::string& record,
                          const std::string& part,
                          const Columns& columns = {}) {
    EXPECT_THAT([&] { read(format, record, columns); }, ThrowsMessage<UserError>(HasSubstr(part)));
  };
  refused("text", R"({"txt":"a"})", R"(the key "text" is missing; it has "txt")");
  refused("text", "{}", "it has no key");
  refused("text", R"({"text":null})", R"("text" is null; give it a value)");
  refused("messages", R"({"messages":null})", R"("messages" is null)");
  refused("messages", R"({"messages":[{"role":"user","content":null}]})", R"("content" is null)");
  refused("text", R"({"text":3})", R"("text" is number, but must be text)");
  refused(
      "prompt_completion",
      R"({"prompt":"p","completion":"c"})",
      R"(the key "question" is missing)",
      {{"prompt", "question"}});
  refused("messages", R"({"messages":"x"})", R"("messages" is string, but must be a list)");
  refused("messages", R"({"messages":[]})", "the conversation has no message");
  refused("messages", R"({"messages":["x"]})", "message 1 is string, but must be an object");
  refused("messages", R"({"messages":[{"role":"user"}]})", R"(the key "content" is missing)");
  refused(
      "messages",
      R"({"messages":[{"role":"user","content":[{"type":"image"}]}]})",
      "a part that is no text");
  refused(
      "messages",
      R"({"messages":[{"role":"assistant","content":"","tool_calls":[]}]})",
      "message 1 has tool_calls");
  refused(
      "sharegpt",
      R"({"conversations":[{"from":"robot","value":"x"}]})",
      R"("from" is "robot", but must be human, gpt or system)");
  refused("sharegpt", R"({"conversations":[1]})", "a turn is number");
  refused("alpaca", R"({"instruction":"i"})", R"(the key "output" is missing)");
  refused(
      "alpaca",
      R"({"instruction":"i","output":"o","history":[["q"]]})",
      R"("history" must be a list)");
}

TEST(RecordFormat, KnowsItsNames) {
  EXPECT_THAT(
      [] { RecordFormat("csv", {}); },
      ThrowsMessage<UserError>(
          HasSubstr("give one of text, prompt_completion, messages, sharegpt, alpaca")));
  EXPECT_THAT(
      [] {
        RecordFormat("text", {{"prompt", "question"}});
      },
      ThrowsMessage<UserError>(
          HasSubstr("data.columns.prompt: the format text has no such column; it has text")));
}

} // namespace
} // namespace palimpsest
