#pragma once

// A conversation as files, templates and the chat agree on it.

#include <string>
#include <vector>

namespace palimpsest {

struct Message {
  std::string role; ///< system, user, assistant, or what else the model's own template knows
  std::string content;
  /// Instruction data only: what the instruction is about. The alpaca template marks it; the others
  /// put it below the content after a blank line.
  std::string input = {};
};

using Conversation = std::vector<Message>;

/// UserError naming the first message that is no UTF-8.
void require_utf8(const Conversation& conversation);

/// The text of a message for a template that knows no input.
inline std::string whole_content(const Message& message) {
  return message.input.empty() ? message.content : message.content + "\n\n" + message.input;
}

} // namespace palimpsest
