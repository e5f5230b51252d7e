// Covers: launcher/cli/chat_session.cc

#include <palimpsest/tests/launcher/program/program_testing.h>

#include <gmock/gmock.h>

#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <utility>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kPrompt = "\n> ";
constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";

/// A chat of llama-tiny at a terminal of its own.
class Terminal {
 public:
  explicit Terminal(const std::string& most_tokens) {
    const std::string data = PALIMPSEST_TEST_DATA;
    const std::string model = data + "/models/llama-tiny";
    const std::string tokenizer = "data.tokenizer=" + data + "/tokenizers/llama3-512";
    child_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (child_ == 0) {
      execl(
          PALIMPSEST_PROGRAM,
          PALIMPSEST_PROGRAM,
          "generate",
          model.c_str(),
          tokenizer.c_str(),
          "training.threads=1",
          "--chat",
          "--chat-template",
          "llama3",
          "--max-new-tokens",
          most_tokens.c_str(),
          nullptr);
      _exit(127);
    }
  }
  ~Terminal() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(terminal_);
  }
  void type(const std::string& text) const {
    ASSERT_EQ(write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// What appears up to `text`; it does appear.
  std::string until(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + testing::kPatience;
    std::string shown;
    while (shown.find(text) == std::string::npos) {
      pollfd polled{.fd = terminal_, .events = POLLIN, .revents = 0};
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "no " << text << " in: " << shown;
        return shown;
      }
      char part[4096];
      const ssize_t size = poll(&polled, 1, 1000) == 1 ? read(terminal_, part, sizeof part) : 0;
      if (size < 0) {
        ADD_FAILURE() << "the chat ended before " << text << " in: " << shown;
        return shown;
      }
      for (ssize_t i = 0; i < size; ++i) {
        shown += part[i] == '\r' ? "" : std::string(1, part[i]);
      }
    }
    return shown;
  }
  /// How it ends by itself.
  int status() {
    int status = -1;
    waitpid(std::exchange(child_, -1), &status, 0);
    return status;
  }

 private:
  int terminal_ = -1;
  pid_t child_ = -1;
};

TEST(ChatAtATerminal, CtrlCDropsTheMessageThatIsTypedAndTheChatGoesOn) {
  Terminal terminal("4");
  EXPECT_THAT(terminal.until(kPrompt), HasSubstr("/reset begins a new conversation"));
  terminal.type("half a mess");
  terminal.until("mess");
  terminal.type(kCtrlC);
  EXPECT_THAT(terminal.until(kPrompt), HasSubstr("(Ctrl-D or /exit ends the chat)"));
  terminal.type("\"\"\"one\n");
  terminal.until("\n. ");
  terminal.type(kCtrlC);
  terminal.until(kPrompt);
  terminal.type("Hi\n");
  EXPECT_THAT(terminal.until(kPrompt), HasSubstr("(cut after 4 tokens: --max-new-tokens)"));
  terminal.type(kCtrlD);
  EXPECT_EQ(terminal.status(), 0);
}

TEST(ChatAtATerminal, CtrlCStopsAReplyAndTheChatGoesOn) {
  Terminal terminal("480");
  terminal.until(kPrompt);
  bool stopped = false;
  // Pressed before the line is read it drops the line, and after the reply nothing.
  for (useconds_t wait = 1000; wait < 2'000'000 && !stopped; wait *= 2) {
    terminal.type("/reset\n");
    terminal.until(kPrompt);
    terminal.type("Hi\n");
    usleep(wait);
    terminal.type(kCtrlC);
    stopped = terminal.until(kPrompt).find("(stopped)") != std::string::npos;
  }
  EXPECT_TRUE(stopped);
  terminal.type("/exit\n");
  EXPECT_EQ(terminal.status(), 0);
}

TEST(ChatAtATerminal, TellsWhatItCannotSendAndGoesOn) {
  Terminal terminal("4");
  terminal.until(kPrompt);
  terminal.type(std::string(5000, 'x') + "\n"); // of which the terminal keeps a part
  EXPECT_THAT(terminal.until(kPrompt), HasSubstr("so this message was not sent"));
  terminal.type("a\xff\n");
  EXPECT_THAT(terminal.until(kPrompt), HasSubstr("byte 2 (0xFF) is no UTF-8"));
  terminal.type("Hi\n");
  EXPECT_THAT(terminal.until(kPrompt), Not(HasSubstr("no UTF-8")));
  terminal.type(kCtrlD);
  EXPECT_EQ(terminal.status(), 0);
}

} // namespace
} // namespace palimpsest
