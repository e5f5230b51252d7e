#include <palimpsest/launcher/cli/chat_session.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

namespace palimpsest {
namespace {

constexpr std::string_view kMark = "\"\"\"";
constexpr const char* kHelp =
    "A line is a message, and so are lines between two \"\"\". Ctrl-C stops a reply.\n"
    "/reset begins a new conversation, /exit or Ctrl-D ends the chat, /help shows this.";

} // namespace

std::optional<std::string> LineReader::next(const std::function<bool()>& interrupted) {
  constexpr int kMilliseconds = 100; // a signal may come just before the wait
  std::array<char, 4096> part;
  while (true) {
    if (const size_t end = read_.find('\n'); end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      ++number_;
      return line;
    }
    pollfd polled{.fd = descriptor_, .events = POLLIN, .revents = 0};
    const bool ready = ::poll(&polled, 1, kMilliseconds) > 0;
    if (interrupted && interrupted()) {
      return std::nullopt;
    }
    if (!ready && descriptor_ >= 0) {
      continue;
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
    number_ += last ? 1 : 0;
    return last ? std::optional(std::exchange(read_, "")) : std::nullopt;
  }
}

void ChatSession::run() {
  if (settings_.interactive && !settings_.quiet) {
    tell(kHelp);
  }
  while (true) {
    const Input input = next();
    if (input.kind == Input::Kind::kEnd) {
      break;
    }
    try {
      if (input.kind == Input::Kind::kMessage) {
        answer(input.text);
      } else if (input.kind == Input::Kind::kCommand && !obey(input.text)) {
        break;
      }
    } catch (const UserError& error) {
      if (!settings_.interactive) {
        throw UserError("standard input:{}: {}", input.line, error.what());
      }
      tell(error.what());
    } catch (const EnvironmentError& error) { // memory may do for a shorter message
      if (!settings_.interactive) {
        throw;
      }
      tell(error.what());
    }
  }
  if (settings_.interactive) {
    out_ << std::endl;
  }
}

/// Of a terminal with a prompt. Nothing at the end of input and, where interrupt_ says so, at Ctrl-C.
std::optional<std::string> ChatSession::next_line(const char* prompt) {
  interrupt_.take(); // of a reply that had ended
  if (settings_.interactive) {
    out_ << prompt << std::flush;
  }
  std::optional<std::string> line = lines_.next([this] { return interrupt_.came(); });
  if (line && line->ends_with('\r')) {
    line->pop_back();
  }
  return line;
}

/// A terminal that edits lines drops what is beyond its buffer.
bool ChatSession::cut_by_terminal(const std::string& line) const {
  constexpr size_t kMostOfALine = 4095;
  return settings_.interactive && line.size() >= kMostOfALine;
}

/// From the first line on, without the marks.
std::optional<std::string> ChatSession::between_marks(std::string text, bool& cut) {
  const int64_t first = lines_.number();
  text.erase(0, kMark.size());
  while (!text.ends_with(kMark)) {
    const std::optional<std::string> line = next_line(". ");
    if (!line) {
      if (!settings_.interactive && !interrupt_.came()) {
        throw UserError(
            "standard input:{}: the message that begins with {} does not end with one",
            first,
            kMark);
      }
      return std::nullopt;
    }
    cut = cut || cut_by_terminal(*line);
    text += "\n" + *line;
  }
  text.erase(text.size() - kMark.size());
  return text;
}

ChatSession::Input ChatSession::next() {
  std::optional<std::string> line = next_line("\n> ");
  Input input{.line = lines_.number()};
  bool cut = line && cut_by_terminal(*line);
  const bool commands = line && line->starts_with('/');
  if (line && line->starts_with(kMark)) {
    line = between_marks(std::move(*line), cut);
  }
  if (!line) {
    if (settings_.interactive && interrupt_.take()) {
      tell("\n(Ctrl-D or /exit ends the chat)");
      input.kind = Input::Kind::kDropped;
    }
    return input;
  }
  if (cut) {
    tell(
        "the terminal cuts lines at 4,095 bytes, so this message was not sent; break it "
        "into lines between two \"\"\"");
  }
  const bool blank = line->find_first_not_of(" \t\n") == std::string::npos;
  input.kind = cut || blank ? Input::Kind::kDropped
      : commands            ? Input::Kind::kCommand
                            : Input::Kind::kMessage;
  input.text = std::move(*line);
  return input;
}

/// False: it ends the session.
bool ChatSession::obey(const std::string& command) {
  const std::string name = command.substr(0, command.find_last_not_of(" \t") + 1);
  if (name == "/exit") {
    return false;
  }
  if (name == "/reset") {
    chat_.reset();
    tell("a new conversation begins");
  } else if (name == "/help") {
    tell(kHelp);
  } else {
    throw UserError(
        "there is no command {}; there are /help, /reset and /exit (a space before the / makes it "
        "a message)",
        name);
  }
  return true;
}

void ChatSession::answer(const std::string& message) {
  const GenerationResult reply = chat_.reply(
      message,
      {.piece = [this](size_t, const std::string& piece) { out_ << piece << std::flush; },
       .interrupted = [this] { return interrupt_.came(); }});
  out_ << std::endl;
  if (reply.reason == FinishReason::kInterrupted) {
    tell("(stopped)");
  } else if (reply.reason == FinishReason::kLength) {
    tell(fmt::format(
        "(cut after {}: --max-new-tokens)", counted(std::ssize(reply.tokens), "token")));
  } else if (reply.reason == FinishReason::kPositions) {
    tell(fmt::format(
        "(cut after {}: the model has no further position; /reset begins a new conversation)",
        counted(std::ssize(reply.tokens), "token")));
  }
}

/// To a person alone.
void ChatSession::tell(const std::string& text) {
  if (settings_.interactive) {
    out_ << text << std::endl;
  }
}

} // namespace palimpsest
