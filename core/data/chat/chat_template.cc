#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/chat/chat_template.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace palimpsest {

namespace {

/// What stands before and after a text.
struct Marks {
  std::string before;
  std::string after;
};

/// A template whose turns are marked alike wherever they stand. {bos} and {eos} are the tokenizer's.
struct TurnStyle {
  std::string name;
  std::string start; ///< before all turns
  Marks system;
  Marks user;
  std::string header; ///< before the assistant's turn; the prompt ends with it
  Marks assistant; ///< what the assistant writes around the content: the end of its turn
  std::string close; ///< after the assistant's turn
  bool strips = false; ///< space around contents
  /// The system message is the beginning of the first user message, and user and assistant take
  /// turns.
  bool system_in_user = false;
  std::string default_system = {}; ///< for conversations without a system message
  std::string default_system_with_input = {};
  std::string input_header = {}; ///< between a message and its input; empty: a blank line
};

const std::vector<TurnStyle>& styles() {
  static const std::vector<TurnStyle> all = {
      {.name = "chatml",
       .system = {"<|im_start|>system\n", "<|im_end|>\n"},
       .user = {"<|im_start|>user\n", "<|im_end|>\n"},
       .header = "<|im_start|>assistant\n",
       .assistant = {"", "<|im_end|>"},
       .close = "\n"},
      {.name = "llama2",
       .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
       .user = {"{bos}[INST] ", " [/INST]"},
       .assistant = {" ", " {eos}"},
       .strips = true,
       .system_in_user = true},
      {.name = "llama3",
       .start = "{bos}",
       .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
       .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
       .header = "<|start_header_id|>assistant<|end_header_id|>\n\n",
       .assistant = {"", "<|eot_id|>"},
       .strips = true},
      {.name = "mistral",
       .start = "{bos}",
       .system = {"", "\n\n"},
       .user = {"[INST] ", "[/INST]"},
       .assistant = {" ", "{eos}"},
       .system_in_user = true},
      {.name = "gemma",
       .start = "{bos}",
       .system = {"", "\n\n"},
       .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
       .header = "<start_of_turn>model\n",
       .assistant = {"", "<end_of_turn>"},
       .close = "\n",
       .strips = true,
       .system_in_user = true},
      {.name = "qwen",
       .system = {"<|im_start|>system\n", "<|im_end|>\n"},
       .user = {"<|im_start|>user\n", "<|im_end|>\n"},
       .header = "<|im_start|>assistant\n",
       .assistant = {"", "<|im_end|>"},
       .close = "\n",
       .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
      {.name = "alpaca",
       .start = "{bos}",
       .system = {"", "\n\n"},
       .user = {"### Instruction:\n", "\n\n"},
       .header = "### Response:\n",
       .assistant = {"", "{eos}"},
       .close = "\n\n",
       .default_system = "Below is an instruction that describes a task. Write a response that "
                         "appropriately completes the request.",
       .default_system_with_input =
           "Below is an instruction that describes a task, paired with an input that provides "
           "further context. Write a response that appropriately completes the request.",
       .input_header = "\n\n### Input:\n"},
      {.name = "plain",
       .start = "{bos}",
       .system = {"", "\n"},
       .user = {"", "\n"},
       .assistant = {"", "{eos}"},
       .close = "\n"},
  };
  return all;
}

void fill_in(std::string& text, const TemplateTokens& tokens) {
  for (const auto& [name, value] : {std::pair("{bos}", tokens.bos), {"{eos}", tokens.eos}}) {
    if (const size_t at = text.find(name); at != text.npos) {
      text.replace(at, std::string_view(name).size(), value);
    }
  }
}

class StyledTemplate final : public ChatTemplate {
 public:
  StyledTemplate(TurnStyle style, const TemplateTokens& tokens) : style_(std::move(style)) {
    if (tokens.eos.empty() && style_.assistant.after.ends_with("{eos}")) {
      throw UserError(
          "data.chat_template: {} ends turns with the end-of-sequence token, and the tokenizer "
          "names none; set eos_token in its tokenizer_config.json",
          style_.name);
    }
    for (std::string* text : {&style_.start, &style_.user.before, &style_.assistant.after}) {
      fill_in(*text, tokens);
    }
  }

  RenderedChat render(const Conversation& conversation, size_t first_target) const override {
    check_roles(conversation);
    RenderedChat chat{.text = style_.start};
    std::string system = opening_system(conversation);
    if (!style_.system_in_user) {
      chat.text += std::exchange(system, {});
    }
    const bool moved = style_.system_in_user && conversation.front().role == "system";
    for (size_t i = moved ? 1 : 0; i < conversation.size(); ++i) {
      const Message& message = conversation[i];
      if (message.role == "assistant") {
        chat.text += style_.header;
        const auto begin = std::ssize(chat.text);
        chat.text += wrap(style_.assistant, content(message));
        if (i >= first_target) {
          chat.assistant.push_back({begin, std::ssize(chat.text)});
        }
        chat.text += style_.close;
      } else if (message.role == "user") {
        chat.text += wrap(style_.user, std::exchange(system, {}) + content(message));
      } else {
        chat.text += wrap(style_.system, content(message));
      }
    }
    return chat;
  }

  std::string prompt(const Conversation& conversation) const override {
    return render(conversation, conversation.size()).text + style_.header;
  }

 private:
  static std::string wrap(const Marks& marks, const std::string& content) {
    return marks.before + content + marks.after;
  }

  std::string content(const Message& message) const {
    std::string text = message.input.empty() || style_.input_header.empty()
        ? whole_content(message)
        : message.content + style_.input_header + message.input;
    return style_.strips ? strip(text) : text;
  }

  /// The marked system message that the turns do not bring themselves: the default, or the one that
  /// goes into the first user message.
  std::string opening_system(const Conversation& conversation) const {
    const Message& first = conversation.front();
    if (first.role == "system") {
      return style_.system_in_user ? wrap(style_.system, content(first)) : std::string();
    }
    const std::string& usual = first.input.empty() || style_.default_system_with_input.empty()
        ? style_.default_system
        : style_.default_system_with_input;
    return usual.empty() ? std::string() : wrap(style_.system, usual);
  }

  void check_roles(const Conversation& conversation) const {
    if (conversation.empty()) {
      throw UserError("the conversation has no message");
    }
    const char* expected = "user";
    for (size_t i = 0; i < conversation.size(); ++i) {
      const std::string& role = conversation[i].role;
      if (role != "system" && role != "user" && role != "assistant") {
        throw UserError(
            "message {} is of the role \"{}\", but the chat template {} knows system, user and "
            "assistant",
            i + 1,
            role,
            style_.name);
      }
      if (style_.system_in_user && !(i == 0 && role == "system")) {
        if (role != expected) {
          throw UserError(
              "message {} is of the role {}, but in the chat template {} user and assistant take "
              "turns after at most one system message, so it must be {}",
              i + 1,
              role,
              style_.name,
              expected);
        }
        expected = role == "user" ? "assistant" : "user";
      }
    }
    if (style_.system_in_user && conversation.size() == 1 && conversation[0].role == "system") {
      throw UserError(
          "the conversation is a system message alone, which the chat template {} writes into the "
          "first user message",
          style_.name);
    }
  }

  TurnStyle style_;
};

/// Characters that Python's str.isspace() accepts, in UTF-8.
size_t space_size(std::string_view text, bool at_end) {
  static constexpr std::string_view kWide[] = {
      "\xc2\x85",
      "\xc2\xa0",
      "\xe1\x9a\x80",
      "\xe2\x80\x80",
      "\xe2\x80\x81",
      "\xe2\x80\x82",
      "\xe2\x80\x83",
      "\xe2\x80\x84",
      "\xe2\x80\x85",
      "\xe2\x80\x86",
      "\xe2\x80\x87",
      "\xe2\x80\x88",
      "\xe2\x80\x89",
      "\xe2\x80\x8a",
      "\xe2\x80\xa8",
      "\xe2\x80\xa9",
      "\xe2\x80\xaf",
      "\xe2\x81\x9f",
      "\xe3\x80\x80"};
  if (text.empty()) {
    return 0;
  }
  const char c = at_end ? text.back() : text.front();
  if (c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f')) {
    return 1;
  }
  for (const std::string_view wide : kWide) {
    if (at_end ? text.ends_with(wide) : text.starts_with(wide)) {
      return wide.size();
    }
  }
  return 0;
}

} // namespace

std::string strip(const std::string& text) {
  std::string_view rest = text;
  while (const size_t size = space_size(rest, false)) {
    rest.remove_prefix(size);
  }
  while (const size_t size = space_size(rest, true)) {
    rest.remove_suffix(size);
  }
  return std::string(rest);
}

std::unique_ptr<ChatTemplate> named_chat_template(
    const std::string& name,
    const TemplateTokens& tokens) {
  const auto found =
      std::ranges::find_if(styles(), [&](const TurnStyle& style) { return style.name == name; });
  if (found == styles().end()) {
    throw UserError(
        "data.chat_template: \"{}\" is no template and no file; give one of {}, or a file in Jinja",
        name,
        fmt::join(named_chat_templates(), ", "));
  }
  return std::make_unique<StyledTemplate>(*found, tokens);
}

std::vector<std::string> named_chat_templates() {
  std::vector<std::string> names;
  for (const TurnStyle& style : styles()) {
    names.push_back(style.name);
  }
  return names;
}

} // namespace palimpsest
