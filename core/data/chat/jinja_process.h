#pragma once

// A Jinja template rendered by a Python process that lives as long as the object.
//
//   JinjaProcess jinja(source, {.bos = "<s>", .eos = "</s>"}, {.file = "own.jinja"});
//   const auto texts = jinja.render(conversation, {{.messages = 2, .prompt = true}, {.messages = 3}});
//
// The environment is that of transformers' apply_chat_template: trim_blocks and lstrip_blocks,
// `raise_exception`, `tojson` without escapes, loop controls, sandboxed; `{% generation %}` marks
// are passed over. `strftime_now` gives the day that Llama 3's template falls back on, 26 July
// 2024: a run that goes on another day reads the same data.

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/chat/chat_template.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace palimpsest {

struct JinjaOptions {
  std::filesystem::path file = {}; ///< that the template was read from, for messages
  std::chrono::seconds limit = std::chrono::seconds(60); ///< for an answer
};

class JinjaProcess {
 public:
  /// One rendering of a conversation's first messages.
  struct Request {
    size_t messages = 0;
    bool prompt = false; ///< with add_generation_prompt
  };

  /// EnvironmentError where neither `python3` in the path nor /usr/bin/python3 has jinja2; UserError
  /// where the template is none.
  JinjaProcess(const std::string& source, const TemplateTokens& tokens, JinjaOptions options = {});

  /// One text for each request. UserError with the template's own words where it refuses the
  /// conversation, with the line that it had come to where it has no end within the limit, and for a
  /// message that is no UTF-8; EnvironmentError with the process' last words where it ended, or did
  /// not even end itself when the time was up. Callers from several threads take turns.
  std::vector<std::string> render(
      const Conversation& conversation,
      const std::vector<Request>& requests);

  /// Of the process, for tests; -1 once it has ended.
  pid_t pid() const {
    return child_ ? child_->pid : -1;
  }

 private:
  struct Child {
    pid_t pid = -1;
    FileDescriptor socket = FileDescriptor();
    FileDescriptor errors = FileDescriptor(); // what it writes to its standard error
    std::string received = {}; // beyond the last answer

    Child() = default;
    Child(const Child&) = delete;
    ~Child();
    std::string end();
  };

  /// Whether the interpreter is there and has jinja2.
  bool start(const std::string& interpreter);
  bool send_line(std::string_view line);
  std::optional<std::string> receive_line();
  nlohmann::json exchange(const nlohmann::ordered_json& request);
  /// "own.jinja: ", or with a line "own.jinja:3: "; empty where there is no file.
  std::string place(int64_t line = 0) const;

  JinjaOptions options_;
  std::mutex mutex_;
  std::optional<Child> child_;
  std::string last_words_;
};

} // namespace palimpsest
