#pragma once

// A chat at a terminal or through pipes: a line is a message, and the reply appears piece by piece.
//
//   ChatSession session(chat, STDIN_FILENO, std::cout, isatty(STDIN_FILENO) == 1);
//   session.run();
//
// Of a file or pipe each line is answered too; nothing but the replies is written then, and what
// the model cannot answer ends the session.

#include <palimpsest/launcher/cli/interrupt.h>
#include <palimpsest/launcher/compose/chat.h>

#include <optional>
#include <ostream>
#include <string>

namespace palimpsest {

/// Lines of a file descriptor, while signals come.
class LineReader {
 public:
  explicit LineReader(int descriptor) : descriptor_(descriptor) {}

  /// The next line without its end; nothing at the end of input, or where a signal came in the
  /// wait for it.
  std::optional<std::string> next();

 private:
  int descriptor_;
  std::string read_; // beyond the last line
};

class ChatSession {
 public:
  /// `interactive`: there is a person to prompt for messages and to tell what went wrong.
  ChatSession(Chat& chat, int input, std::ostream& out, bool interactive)
      : chat_(chat), lines_(input), out_(out), interactive_(interactive) {}

  /// Until /exit, the end of input, or Ctrl-C where a message is waited for; Ctrl-C in a reply ends
  /// the reply. /reset begins a new conversation.
  void run();

 private:
  void answer(const std::string& line);
  bool command(const std::string& line);

  Chat& chat_;
  LineReader lines_;
  std::ostream& out_;
  bool interactive_;
  Interrupt interrupt_;
};

} // namespace palimpsest
