#include <palimpsest/launcher/cli/chat_session.h>

#include <palimpsest/core/base/error.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <unistd.h>

#include <csignal>
#include <sstream>
#include <string>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kData = PALIMPSEST_TEST_DATA;

/// A pipe that holds a text and then ends.
class Input {
 public:
  explicit Input(const std::string& text) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(ends[1]);
    descriptor_ = ends[0];
  }
  ~Input() {
    close(descriptor_);
  }
  int descriptor() const {
    return descriptor_;
  }

 private:
  int descriptor_ = -1;
};

/// What is written to it, and Ctrl-C with every piece.
class InterruptedOutput : public std::stringbuf {
 protected:
  int sync() override {
    std::raise(SIGINT);
    return 0;
  }
};

class ChatSessionTest : public ::testing::Test {
 protected:
  explicit ChatSessionTest(const std::string& model = "llama-tiny")
      : source_(find_generation_source(
            kData + "/models/" + model,
            {"data.tokenizer=" + kData + "/tokenizers/llama3-512",
             "data.chat_template=llama3",
             "training.threads=1"})),
        model_(source_), text_(source_.texts, source_.config.data().chat_template(), 512) {
    model_.load();
  }
  Chat chat(int64_t max_new_tokens = 6, const std::string& system = "") {
    GenerationSettings settings{
        .sampling = {.temperature = 0, .repetition_penalty = 1.5},
        .max_positions = model_.max_positions(),
        .end_ids = text_.end_ids()};
    return {model_, text_, settings, {.system = system, .max_new_tokens = max_new_tokens}};
  }
  static std::string session(Chat& chat, const std::string& input, bool interactive = false) {
    const Input lines(input);
    std::ostringstream out;
    ChatSession(chat, lines.descriptor(), out, {.interactive = interactive}).run();
    return out.str();
  }

  GenerationSource source_;
  GenerationModel model_;
  GenerationText text_;
};

TEST(LineReader, GivesLinesOfAnyLength) {
  const std::string longer(10000, 'x');
  const Input input("one\n\n" + longer + "\nlast");
  LineReader lines(input.descriptor());
  EXPECT_EQ(lines.next(), "one");
  EXPECT_EQ(lines.next(), "");
  EXPECT_EQ(lines.next(), longer);
  EXPECT_EQ(lines.number(), 3);
  EXPECT_EQ(lines.next(), "last");
  EXPECT_EQ(lines.next(), std::nullopt);
  EXPECT_EQ(lines.number(), 4);
}

TEST(LineReader, AnInputThatCannotBeReadIsTheEnvironmentsError) {
  LineReader lines(-1);
  EXPECT_THROW(lines.next(), EnvironmentError);
}

// Turn after turn in one cache: what one that begins anew with the same conversation says.
TEST_F(ChatSessionTest, TheCacheChangesNoReply) {
  Chat kept = chat(6, "Be brief.");
  const std::vector<std::string> messages = {"Who is there?", "A word?", "And 12 more"};
  std::vector<std::string> replies;
  for (const std::string& message : messages) {
    const int64_t before = kept.conversation().size() == 1 ? 0 : kept.tokens_read();
    Conversation whole = kept.conversation();
    whole.push_back({"user", message});
    const int64_t all = std::ssize(text_.encode(whole));
    const GenerationResult reply = kept.reply(message, {});
    replies.push_back(reply.text);
    EXPECT_EQ(reply.tokens.size(), 6U);
    if (before > 0) { // the first turn's tokens are not read again
      EXPECT_LT(kept.tokens_read(), all / 2 + 6);
    } else {
      EXPECT_EQ(kept.tokens_read(), all);
    }
    TextGenerator generator(
        model_.generator(),
        text_,
        {.sampling = {.temperature = 0, .repetition_penalty = 1.5}, .end_ids = text_.end_ids()});
    const GenerationRequest request{
        .prompt = text_.encode(whole), .max_new_tokens = 6, .reply = true};
    GenerationResult alone;
    generator.run({&request, 1}, {.done = [&](size_t, const auto& result) { alone = result; }});
    EXPECT_EQ(alone.text, reply.text);
  }
  Chat again = chat(6, "Be brief.");
  EXPECT_EQ(
      session(again, "Who is there?\r\n\nA word?\nAnd 12 more"),
      replies[0] + "\n" + replies[1] + "\n" + replies[2] + "\n");
  Chat forgets = chat(6, "Be brief.");
  EXPECT_EQ(
      session(forgets, "Who is there?\n/reset\nWho is there?\n/exit\nA word?\n"),
      replies[0] + "\n" + replies[0] + "\n");
}

TEST_F(ChatSessionTest, APersonIsPromptedAndTold) {
  Chat one = chat();
  const std::string out = session(one, "Hi\n/fly\n/reset\n", /*interactive=*/true);
  EXPECT_THAT(out, HasSubstr("/exit"));
  EXPECT_THAT(out, HasSubstr("\n> "));
  EXPECT_THAT(out, HasSubstr("there is no command /fly"));
  EXPECT_TRUE(one.conversation().empty());
  Chat other = chat();
  EXPECT_THROW(session(other, "Hi\n/fly\n"), UserError); // of a pipe: nobody would see it
}

TEST_F(ChatSessionTest, ACommandIsObeyedAndAnswered) {
  Chat one = chat();
  const std::string out = session(one, "/help\n/reset \nHi\n/exit\t\nHi\n", /*interactive=*/true);
  EXPECT_THAT(out, HasSubstr("a new conversation begins\n\n> "));
  EXPECT_EQ(one.conversation().size(), 2U); // the first Hi alone
  const size_t first = out.find("/reset begins");
  EXPECT_NE(out.find("/reset begins", first + 1), std::string::npos); // at the start, and for /help
  Chat other = chat();
  const Input lines("/exit\n");
  std::ostringstream quiet;
  ChatSession(other, lines.descriptor(), quiet, {.interactive = true, .quiet = true}).run();
  EXPECT_EQ(quiet.str(), "\n> \n");
}

TEST_F(ChatSessionTest, WhatIsNoUtf8IsToldAndTheChatGoesOn) {
  Chat one = chat();
  const std::string out = session(one, "a\xFFz\nHi\n", /*interactive=*/true);
  EXPECT_THAT(out, HasSubstr("> byte 2 (0xFF) is no UTF-8; convert the text to UTF-8\n\n> "));
  ASSERT_EQ(one.conversation().size(), 2U);
  EXPECT_EQ(one.conversation()[0].content, "Hi");
  Chat other = chat();
  EXPECT_THAT(
      [&] { session(other, "Hi\n\na\xFFz\nHi\n"); },
      ::testing::ThrowsMessage<UserError>(HasSubstr("standard input:3: byte 2 (0xFF)")));
}

TEST_F(ChatSessionTest, LinesBetweenMarksAreOneMessage) {
  Chat one = chat();
  session(one, "\"\"\"a\n\n/b\r\nc\"\"\"\n\"\"\"d\"\"\"\n");
  ASSERT_EQ(one.conversation().size(), 4U);
  EXPECT_EQ(one.conversation()[0].content, "a\n\n/b\nc");
  EXPECT_EQ(one.conversation()[2].content, "d");
  Chat other = chat();
  EXPECT_THAT(
      [&] { session(other, "Hi\n\"\"\"a\nb\n"); },
      ::testing::ThrowsMessage<UserError>(
          HasSubstr("standard input:2: the message that begins with \"\"\" does not end")));
}

TEST_F(ChatSessionTest, APersonLearnsThatAReplyWasCut) {
  Chat one = chat();
  EXPECT_THAT(session(one, "Hi\n", true), HasSubstr("\n(cut after 6 tokens: --max-new-tokens)\n"));
  Chat other = chat();
  EXPECT_THAT(session(other, "Hi\n"), Not(HasSubstr("(cut")));
}

TEST_F(ChatSessionTest, APersonLearnsThatTheModelHasNoFurtherPosition) {
  const auto prompt = std::ssize(text_.encode(Conversation{{"user", "Hi"}}));
  const int64_t room = model_.max_positions() - prompt;
  const auto endless = [&](int64_t max_new_tokens) {
    const GenerationSettings settings{
        .sampling = {.temperature = 0}, .max_positions = model_.max_positions()};
    return Chat(model_, text_, settings, {.max_new_tokens = max_new_tokens});
  };
  Chat one = endless(100'000);
  EXPECT_THAT(
      session(one, "Hi\n", true),
      HasSubstr(fmt::format(
          "\n(cut after {} tokens: the model has no further position; /reset begins a new "
          "conversation)\n",
          room)));
  Chat other = endless(room); // both at once: as many as were asked for
  EXPECT_THAT(
      session(other, "Hi\n", true),
      HasSubstr(fmt::format("(cut after {} tokens: --max-new-tokens)\n", room)));
}

// What a terminal passes on of a longer line.
TEST_F(ChatSessionTest, ALineThatTheTerminalCutIsNotSent) {
  Chat one = chat();
  const std::string out = session(one, std::string(4095, 'x') + "\nHi\n", /*interactive=*/true);
  EXPECT_THAT(out, HasSubstr("lines at 4,095 bytes, so this message was not sent"));
  ASSERT_EQ(one.conversation().size(), 2U);
  EXPECT_EQ(one.conversation()[0].content, "Hi");
}

TEST_F(ChatSessionTest, LinesMayEndAsOnWindows) {
  Chat one = chat();
  Chat other = chat();
  EXPECT_EQ(session(one, "Hi\r\n/reset\r\n/exit\r\nHi\r\n"), session(other, "Hi\n"));
  EXPECT_TRUE(one.conversation().empty());
}

TEST_F(ChatSessionTest, CtrlCEndsTheReplyAndTheChatGoesOn) {
  Chat one = chat(50);
  const Input lines("Hi\nA word?\n");
  InterruptedOutput buffer;
  std::ostream out(&buffer);
  ChatSession(one, lines.descriptor(), out, {}).run();
  ASSERT_EQ(one.conversation().size(), 4U);
  Chat whole = chat(50);
  const std::string text = whole.reply("Hi", {}).text;
  const std::string& part = one.conversation()[1].content;
  EXPECT_LT(part.size(), text.size());
  EXPECT_EQ(part, text.substr(0, part.size()));
}

TEST_F(ChatSessionTest, AConversationThatIsTooLongIsRefusedAndForgotten) {
  Chat one = chat();
  one.reply("Hi", {});
  const Conversation before = one.conversation();
  EXPECT_THROW(one.reply(std::string(3000, '!'), {}), UserError);
  EXPECT_EQ(one.conversation().size(), before.size());
  EXPECT_EQ(one.reply("A word?", {}).tokens.size(), 6U); // and goes on
}

} // namespace
} // namespace palimpsest
