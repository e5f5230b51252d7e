#pragma once

// From a conversation to the text that a model reads, and which of it the model is to write.
//
//   const auto chat = named_chat_template("chatml", {.bos = "", .eos = "<|im_end|>"});
//   const RenderedChat text = chat->render(conversation);
//   const std::string prompt = chat->prompt(conversation);     // the assistant's turn comes next
//
// The text is encoded as it is: a beginning-of-sequence token stands in it where it belongs.

#include <palimpsest/core/data/chat/message.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest {

/// The tokenizer's special tokens that templates name; empty where it has none.
struct TemplateTokens {
  std::string bos;
  std::string eos;
};

/// Bytes [begin, end) of a text.
struct TextSpan {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TextSpan&) const = default;
};

struct RenderedChat {
  std::string text;
  /// What the assistant writes, one span for each of its messages that was asked for, in order: from
  /// the end of its header to the end of its turn, the end-of-turn token included.
  std::vector<TextSpan> assistant;
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  /// The whole text, and the spans of the assistant's messages among `conversation[first_target ...]`.
  /// UserError where the template does not allow the conversation (roles it does not know or in
  /// another order). May be called from several threads.
  virtual RenderedChat render(const Conversation& conversation, size_t first_target = 0) const = 0;
  /// The text after which the assistant's next turn begins.
  virtual std::string prompt(const Conversation& conversation) const = 0;
};

/// One of named_chat_templates(). UserError for another name.
std::unique_ptr<ChatTemplate> named_chat_template(
    const std::string& name,
    const TemplateTokens& tokens);

/// chatml, llama2, llama3, mistral, gemma, qwen, alpaca, plain.
std::vector<std::string> named_chat_templates();

/// `text` without the space around it, as Python's str.strip() counts space.
std::string strip(const std::string& text);

} // namespace palimpsest
