#pragma once

// The chat template that a model brings along.
//
//   if (const auto source = model_chat_template("Llama-3.2-1B")) {
//     const JinjaTemplate chat(source->text, tokens, {.file = source->file});
//     chat.render(conversation);
//   }

#include <palimpsest/core/data/chat/chat_template.h>
#include <palimpsest/core/data/chat/jinja_process.h>

#include <filesystem>
#include <optional>
#include <string>

namespace palimpsest {

/// A template in Jinja and the file that it was read from.
struct TemplateSource {
  std::string text;
  std::filesystem::path file;
};

/// A file in Jinja. UserError naming the line where it is no UTF-8.
TemplateSource read_template(const std::filesystem::path& file);

/// The Jinja source in a Hugging Face folder: chat_template.jinja, or chat_template in
/// tokenizer_config.json (of several, the one named default). Nothing where it has none; UserError
/// where it is malformed.
std::optional<TemplateSource> model_chat_template(const std::filesystem::path& folder);

/// What the assistant writes is found by rendering the conversation up to each of its turns and
/// beyond: the text after the prompt, up to the last visible character of the turn.
class JinjaTemplate final : public ChatTemplate {
 public:
  /// See JinjaProcess.
  JinjaTemplate(const std::string& source, const TemplateTokens& tokens, JinjaOptions options = {});

  /// UserError also where a turn reads differently once others follow it, so that its place in the
  /// whole text is not defined.
  RenderedChat render(const Conversation& conversation, size_t first_target) const override;
  std::string prompt(const Conversation& conversation) const override;

 private:
  mutable JinjaProcess process_;
};

} // namespace palimpsest
