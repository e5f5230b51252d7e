#include <palimpsest/core/data/chat/message.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tokenizer/utf8.h>

namespace palimpsest {

void require_utf8(const Conversation& conversation) {
  for (size_t i = 0; i < conversation.size(); ++i) {
    const Message& message = conversation[i];
    for (const std::string& text : {message.role, message.content, message.input}) {
      try {
        require_utf8(text);
      } catch (const UserError& error) {
        throw UserError("message {}: {}", i + 1, error.what());
      }
    }
  }
}

} // namespace palimpsest
