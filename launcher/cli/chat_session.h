#pragma once

// A chat at a terminal or through pipes: a line, or the lines between two """, is a message, and the
// reply appears piece by piece.
//
//   ChatSession session(chat, STDIN_FILENO, std::cout, {.interactive = isatty(STDIN_FILENO) == 1});
//   session.run();
//
// Of a file or pipe each message is answered too; nothing but the replies is written then, and what
// the model cannot answer ends the session.

#include <palimpsest/launcher/cli/interrupt.h>
#include <palimpsest/launcher/compose/chat.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

namespace palimpsest {

/// Lines of a file descriptor, while signals come.
class LineReader {
 public:
  explicit LineReader(int descriptor) : descriptor_(descriptor) {}

  /// The next line without its end; nothing at the end of input, or where it is `interrupted` in the
  /// wait for it.
  std::optional<std::string> next(const std::function<bool()>& interrupted = {});
  /// Of the line that came last, from 1.
  int64_t number() const {
    return number_;
  }

 private:
  int descriptor_;
  std::string read_; // beyond the last line
  int64_t number_ = 0;
};

struct ChatSessionSettings {
  bool interactive =
      false; ///< there is a person to prompt for messages and to tell what went wrong
  bool quiet = false; ///< and who knows the commands
};

class ChatSession {
 public:
  ChatSession(Chat& chat, int input, std::ostream& out, const ChatSessionSettings& settings)
      : chat_(chat), lines_(input), out_(out), settings_(settings) {}

  /// Until /exit or the end of input. Ctrl-C ends a reply; where a message is waited for it ends the
  /// message, and without a person the session. /reset begins a new conversation.
  void run();

 private:
  /// What the next line or lines are.
  struct Input {
    enum class Kind { kMessage, kCommand, kDropped, kEnd } kind = Kind::kEnd;
    std::string text = {};
    int64_t line = 0; // its first
  };
  Input next();
  std::optional<std::string> next_line(const char* prompt);
  std::optional<std::string> between_marks(std::string text, bool& cut);
  bool cut_by_terminal(const std::string& line) const;
  bool obey(const std::string& command);
  void answer(const std::string& message);
  void tell(const std::string& text);

  Chat& chat_;
  LineReader lines_;
  std::ostream& out_;
  ChatSessionSettings settings_;
  Interrupt interrupt_;
};

} // namespace palimpsest
