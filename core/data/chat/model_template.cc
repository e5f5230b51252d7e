#include <palimpsest/core/data/chat/model_template.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/tokenizer/utf8.h>
#include <palimpsest/core/io/json.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace palimpsest {

TemplateSource read_template(const std::filesystem::path& file) {
  std::string text = read_file(file);
  if (const std::optional<size_t> at = invalid_utf8(text)) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<int64_t>(*at), '\n');
    throw UserError(
        "{}:{}: byte {} of the file (0x{:02X}) is no UTF-8; save the chat template as UTF-8",
        file.string(),
        line,
        *at + 1,
        static_cast<uint8_t>(text[*at]));
  }
  return {.text = std::move(text), .file = file};
}

std::optional<TemplateSource> model_chat_template(const std::filesystem::path& folder) {
  const std::filesystem::path own_file = folder / "chat_template.jinja";
  if (std::filesystem::exists(own_file)) {
    return read_template(own_file);
  }
  const std::filesystem::path config_file = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(config_file)) {
    return std::nullopt;
  }
  const nlohmann::json config = parse_json(read_file(config_file), config_file.string());
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) {
    return std::nullopt;
  }
  if (found->is_string()) {
    return TemplateSource{.text = found->get<std::string>(), .file = config_file};
  }
  if (found->is_array()) {
    for (const nlohmann::json& item : *found) {
      const bool usable = item.is_object() && item.contains("template") &&
          item["template"].is_string() && item.value("name", nlohmann::json()) == "default";
      if (usable) {
        return TemplateSource{.text = item["template"].get<std::string>(), .file = config_file};
      }
    }
  }
  throw UserError(
      "{}: chat_template is neither text nor a list with one named default", config_file.string());
}

JinjaTemplate::JinjaTemplate(
    const std::string& source,
    const TemplateTokens& tokens,
    JinjaOptions options)
    : process_(source, tokens, std::move(options)) {}

RenderedChat JinjaTemplate::render(const Conversation& conversation, size_t first_target) const {
  std::vector<JinjaProcess::Request> requests = {{.messages = conversation.size()}};
  std::vector<size_t> turns;
  for (size_t i = first_target; i < conversation.size(); ++i) {
    if (conversation[i].role == "assistant") {
      turns.push_back(i);
      requests.push_back({.messages = i});
      requests.push_back({.messages = i, .prompt = true});
      requests.push_back({.messages = i + 1});
    }
  }
  std::vector<std::string> texts = process_.render(conversation, requests);
  RenderedChat chat{.text = std::move(texts[0])};
  for (size_t i = 0; i < turns.size(); ++i) {
    const std::string& history = texts[3 * i + 1];
    const std::string& prompt = texts[3 * i + 2];
    const std::string& through = texts[3 * i + 3];
    if (!chat.text.starts_with(through) || !through.starts_with(history)) {
      throw UserError(
          "the chat template renders what stands before message {}, or the message itself, "
          "differently once others follow, so its targets cannot be told; use data.loss_on: last "
          "or all, or another data.chat_template",
          turns[i] + 1);
    }
    // A prompt may open the turn with more than the turn then has.
    const auto begin = std::ranges::mismatch(prompt, through).in2 - through.begin();
    const size_t visible = through.find_last_not_of(" \t\r\n");
    const auto end = visible == through.npos ? 0 : static_cast<int64_t>(visible) + 1;
    chat.assistant.push_back({begin, std::max<int64_t>(begin, end)});
  }
  return chat;
}

std::string JinjaTemplate::prompt(const Conversation& conversation) const {
  return process_.render(conversation, {{.messages = conversation.size(), .prompt = true}})[0];
}

} // namespace palimpsest
