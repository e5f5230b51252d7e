#include <palimpsest/launcher/cli/chat_session.h>

#include <palimpsest/core/base/error.h>

#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace palimpsest {

std::optional<std::string> LineReader::next() {
  std::array<char, 4096> part;
  while (true) {
    if (const size_t end = read_.find('\n'); end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    const ssize_t count = ::read(descriptor_, part.data(), part.size());
    if (count > 0) {
      read_.append(part.data(), static_cast<size_t>(count));
      continue;
    }
    if (count < 0 && errno != EINTR) {
      throw EnvironmentError(
          "cannot read standard input: {}", std::generic_category().message(errno));
    }
    const bool last = count == 0 && !read_.empty(); // a last line without its end
    return last ? std::optional(std::exchange(read_, "")) : std::nullopt;
  }
}

void ChatSession::run() {
  if (interactive_) {
    out_ << "A line is a message. /reset begins a new conversation, /exit or Ctrl-D ends, Ctrl-C "
            "stops a reply.\n";
  }
  while (true) {
    if (interactive_) {
      out_ << "\n> " << std::flush;
    }
    interrupt_.take();
    std::optional<std::string> line = lines_.next();
    if (line && line->ends_with('\r')) {
      line->pop_back();
    }
    if (!line || *line == "/exit") {
      break;
    }
    if (line->find_first_not_of(" \t") != std::string::npos) {
      answer(*line);
    }
  }
  if (interactive_) {
    out_ << std::endl;
  }
}

/// Whether the line is one, and no message.
bool ChatSession::command(const std::string& line) {
  if (line.front() != '/') {
    return false;
  }
  if (line != "/reset") {
    throw UserError(
        "there is no command {}; there are /reset and /exit (a space before the / makes it a "
        "message)",
        line);
  }
  chat_.reset();
  return true;
}

void ChatSession::answer(const std::string& line) {
  try {
    if (command(line)) {
      return;
    }
    chat_.reply(
        line,
        {.piece = [this](size_t, const std::string& piece) { out_ << piece << std::flush; },
         .interrupted = [this] { return interrupt_.came(); }});
    out_ << std::endl;
  } catch (const UserError& error) {
    if (!interactive_) {
      throw;
    }
    out_ << error.what() << std::endl;
  }
}

} // namespace palimpsest
