#pragma once

// From an example to the text that is tokenized, and which of it is to be learnt.
//
//   const ExampleText text(chat, LossOn::kAssistant);
//   const TargetText rendered = text.render(format.example(record));

#include <palimpsest/core/data/chat/chat_template.h>
#include <palimpsest/core/data/examples/token_targets.h>
#include <palimpsest/core/data/records/record_format.h>

#include <memory>

namespace palimpsest {

/// Which of a conversation's or a completion's tokens are targets.
enum class LossOn {
  kAssistant, ///< what the assistant writes, in each of its turns; a completion
  kLast, ///< what it writes in the last of them
  kAll,
};

class ExampleText {
 public:
  /// `chat` may be null where no conversation comes.
  ExampleText(std::shared_ptr<const ChatTemplate> chat, LossOn loss_on);

  /// A document is a target as a whole, its end token included. A completion becomes a conversation
  /// where there is a template, and otherwise follows its prompt as it is, up to the end token.
  /// UserError where the template refuses the conversation or there is none.
  TargetText render(const Example& example) const;

 private:
  TargetText render(const Document& document) const;
  TargetText render(const Completion& completion) const;
  TargetText render(const Conversation& conversation) const;

  std::shared_ptr<const ChatTemplate> chat_;
  LossOn loss_on_;
};

} // namespace palimpsest
