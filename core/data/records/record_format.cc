#include <palimpsest/core/data/records/record_format.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/json.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace palimpsest {

namespace {

using Json = nlohmann::json;

/// The keys of one object, under the user's names for them.
class Fields {
 public:
  Fields(const Json& object, const Columns& columns) : object_(object), columns_(columns) {}

  /// Null where the key is missing or null.
  const Json* find(const std::string& key) const {
    const auto found = object_.find(name(key));
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& need(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr && object_.contains(name(key))) {
      throw UserError("{} is null; give it a value, or leave the record out", quote(name(key)));
    }
    if (value == nullptr) {
      std::vector<std::string> keys;
      for (const auto& [present, unused] : object_.items()) {
        keys.push_back(quote(present));
      }
      throw UserError(
          "the key {} is missing; it has {}",
          quote(name(key)),
          keys.empty() ? "no key" : fmt::format("{}", fmt::join(keys, ", ")));
    }
    return *value;
  }
  std::string text(const std::string& key) const {
    const Json& value = need(key);
    if (!value.is_string()) {
      throw UserError(
          "{} is {}, but must be text", quote(name(key)), std::string(value.type_name()));
    }
    return value.get<std::string>();
  }
  std::string text_or_empty(const std::string& key) const {
    return find(key) == nullptr ? std::string() : text(key);
  }
  const Json& list(const std::string& key) const {
    const Json& value = need(key);
    if (!value.is_array()) {
      throw UserError(
          "{} is {}, but must be a list", quote(name(key)), std::string(value.type_name()));
    }
    return value;
  }

 private:
  std::string name(const std::string& key) const {
    const auto found = columns_.find(key);
    return found == columns_.end() ? key : found->second;
  }

  const Json& object_;
  const Columns& columns_;
};

Example read_text(const Fields& record, const Columns& /*columns*/) {
  return Document{record.text("text")};
}

Example read_completion(const Fields& record, const Columns& /*columns*/) {
  return Completion{record.text("prompt"), record.text("completion")};
}

/// The text of a message's content: a string, or a list of text parts.
std::string content_text(const Fields& message) {
  const Json& content = message.need("content");
  if (!content.is_array()) {
    return message.text("content");
  }
  std::string text;
  for (const Json& part : content) {
    if (!part.is_object() || part.value("type", Json()) != "text" ||
        !part.value("text", Json()).is_string()) {
      throw UserError(
          "a message's content has a part that is no text; only text can be trained on");
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

Example read_messages(const Fields& record, const Columns& columns) {
  Conversation conversation;
  for (const Json& item : record.list("messages")) {
    if (!item.is_object()) {
      throw UserError(
          "message {} is {}, but must be an object", conversation.size() + 1, item.type_name());
    }
    const Fields message(item, columns);
    for (const char* key : {"tool_calls", "function_call"}) {
      if (message.find(key) != nullptr) {
        throw UserError(
            "message {} has {}, which cannot be trained on; give its text as content",
            conversation.size() + 1,
            key);
      }
    }
    conversation.push_back({message.text("role"), content_text(message)});
  }
  return conversation;
}

std::string sharegpt_role(const std::string& from) {
  static constexpr auto kRoles = std::to_array<std::pair<const char*, const char*>>({
      {"human", "user"},
      {"user", "user"},
      {"gpt", "assistant"},
      {"assistant", "assistant"},
      {"chatgpt", "assistant"},
      {"bing", "assistant"},
      {"bard", "assistant"},
      {"model", "assistant"},
      {"system", "system"},
  });
  const auto known =
      std::ranges::find_if(kRoles, [&](const auto& role) { return role.first == from; });
  if (known == kRoles.end()) {
    throw UserError("\"from\" is {}, but must be human, gpt or system", quote(from));
  }
  return known->second;
}

Example read_sharegpt(const Fields& record, const Columns& columns) {
  Conversation conversation;
  if (const std::string system = record.text_or_empty("system"); !system.empty()) {
    conversation.push_back({"system", system});
  }
  for (const Json& item : record.list("conversations")) {
    if (!item.is_object()) {
      throw UserError("a turn is {}, but must be an object", item.type_name());
    }
    const Fields turn(item, columns);
    conversation.push_back({sharegpt_role(turn.text("from")), turn.text("value")});
  }
  return conversation;
}

Example read_alpaca(const Fields& record, const Columns& /*columns*/) {
  Conversation conversation;
  if (const std::string system = record.text_or_empty("system"); !system.empty()) {
    conversation.push_back({"system", system});
  }
  if (record.find("history") != nullptr) {
    for (const Json& turn : record.list("history")) {
      if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string()) {
        throw UserError("\"history\" must be a list of [instruction, answer] pairs of text");
      }
      conversation.push_back({"user", turn[0].get<std::string>()});
      conversation.push_back({"assistant", turn[1].get<std::string>()});
    }
  }
  conversation.push_back({"user", record.text("instruction"), record.text_or_empty("input")});
  conversation.push_back({"assistant", record.text("output")});
  return conversation;
}

struct Format {
  const char* name;
  std::vector<std::string> columns;
  Example (*read)(const Fields& record, const Columns& columns);
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"text", {"text"}, read_text},
      {"prompt_completion", {"prompt", "completion"}, read_completion},
      {"messages", {"messages", "role", "content"}, read_messages},
      {"sharegpt", {"conversations", "from", "value", "system"}, read_sharegpt},
      {"alpaca", {"instruction", "input", "output", "system", "history"}, read_alpaca},
  };
  return all;
}

const Format& format_named(const std::string& name) {
  const auto found =
      std::ranges::find_if(formats(), [&](const Format& format) { return format.name == name; });
  if (found == formats().end()) {
    throw UserError(
        "data.format: {} is no format of records; give one of {}",
        quote(name),
        fmt::join(record_format_names(), ", "));
  }
  return *found;
}

} // namespace

RecordFormat::RecordFormat(const std::string& name, Columns columns)
    : name_(name), columns_(std::move(columns)) {
  const Format& format = format_named(name);
  for (const auto& [column, unused] : columns_) {
    if (std::ranges::find(format.columns, column) == format.columns.end()) {
      throw UserError(
          "data.columns.{}: the format {} has no such column; it has {}",
          column,
          name,
          fmt::join(format.columns, ", "));
    }
  }
}

Example RecordFormat::example(const nlohmann::json& record) const {
  const Fields fields(record, columns_);
  Example example = format_named(name_).read(fields, columns_);
  const auto* conversation = std::get_if<Conversation>(&example);
  if (conversation != nullptr && conversation->empty()) {
    throw UserError("the conversation has no message");
  }
  return example;
}

std::vector<std::string> record_format_names() {
  std::vector<std::string> names;
  for (const Format& format : formats()) {
    names.emplace_back(format.name);
  }
  return names;
}

const std::vector<std::string>& record_format_columns(const std::string& format) {
  return format_named(format).columns;
}

} // namespace palimpsest
