#include <palimpsest/core/data/examples/example_text.h>

#include <palimpsest/core/base/error.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

namespace {

TargetText all_of(std::string text) {
  const auto end = std::ssize(text);
  return {std::move(text), {{0, end}}};
}

} // namespace

ExampleText::ExampleText(std::shared_ptr<const ChatTemplate> chat, LossOn loss_on)
    : chat_(std::move(chat)), loss_on_(loss_on) {}

TargetText ExampleText::render(const Example& example) const {
  return std::visit([this](const auto& kind) { return render(kind); }, example);
}

TargetText ExampleText::render(const Document& document) const {
  TargetText text = all_of(document.text);
  text.surrounded = true;
  return text;
}

TargetText ExampleText::render(const Completion& completion) const {
  if (chat_) {
    return render(Conversation{{"user", completion.prompt}, {"assistant", completion.completion}});
  }
  TargetText text = all_of(completion.prompt + completion.completion);
  text.surrounded = true;
  if (loss_on_ != LossOn::kAll) {
    text.targets.front().begin = std::ssize(completion.prompt);
  }
  return text;
}

TargetText ExampleText::render(const Conversation& conversation) const {
  if (!chat_) {
    throw UserError(
        "conversations need a chat template, and the model brings none; name one in "
        "data.chat_template: {}",
        fmt::join(named_chat_templates(), ", "));
  }
  if (loss_on_ == LossOn::kAll) {
    return all_of(chat_->render(conversation, conversation.size()).text);
  }
  size_t first = 0;
  if (loss_on_ == LossOn::kLast) {
    const auto last =
        std::find_if(conversation.rbegin(), conversation.rend(), [](const Message& message) {
          return message.role == "assistant";
        });
    first = static_cast<size_t>(conversation.rend() - last); // one beyond it, or 0
    first -= first > 0 ? 1 : 0;
  }
  RenderedChat chat = chat_->render(conversation, first);
  return {std::move(chat.text), std::move(chat.assistant)};
}

} // namespace palimpsest
