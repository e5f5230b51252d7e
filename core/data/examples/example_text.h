#pragma once

// From an example to the text that is tokenized, and which of it is to be learnt.
//
//   const ExampleText text(chat, {.bos = "<s>", .eos = "</s>"}, LossOn::kAssistant);
//   const TargetText rendered = text.render(format.example(record));

#include <palimpsest/core/data/chat/chat_template.h>
#include <palimpsest/core/data/records/record_format.h>

#include <memory>
#include <string>
#include <vector>

namespace palimpsest {

/// Which of a conversation's or a completion's tokens are targets.
enum class LossOn {
  kAssistant, ///< what the assistant writes, in each of its turns; a completion
  kLast, ///< what it writes in the last of them
  kAll,
};

struct TargetText {
  std::string text;
  std::vector<TextSpan> targets; ///< in order, disjoint
};

class ExampleText {
 public:
  /// `chat` may be null where no conversation comes. `tokens` stand around documents and
  /// completions.
  ExampleText(std::shared_ptr<const ChatTemplate> chat, TemplateTokens tokens, LossOn loss_on);

  /// A document is a target as a whole, its end token included. A completion becomes a conversation
  /// where there is a template, and otherwise follows its prompt as it is, up to the end token.
  /// UserError where the template refuses the conversation or there is none.
  TargetText render(const Example& example) const;

 private:
  TargetText render(const Document& document) const;
  TargetText render(const Completion& completion) const;
  TargetText render(const Conversation& conversation) const;

  std::shared_ptr<const ChatTemplate> chat_;
  TemplateTokens tokens_;
  LossOn loss_on_;
};

} // namespace palimpsest
