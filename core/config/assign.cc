#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/assign.h>
#include <palimpsest/core/config/nearest.h>
#include <palimpsest/core/config/schema.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace palimpsest {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Kind = DocumentNode::Kind;

/// The whole of `text` as a finite number; from_chars knows no plus sign but does know nan and inf.
std::optional<double> parse_number(const std::string& text) {
  const char* begin = text.data() + (text.starts_with('+') && !text.starts_with("+-") ? 1 : 0);
  const char* end = text.data() + text.size();
  double number = 0;
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number)) {
    return std::nullopt;
  }
  return number;
}

/// The whole of `text` as an integer without leading zeros, which some read as octal.
std::optional<int64_t> parse_integer(const std::string& text) {
  const char* end = text.data() + text.size();
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const std::string digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (error != std::errc() || stop != end || (digits.size() > 1 && digits.front() == '0')) {
    return std::nullopt;
  }
  return number;
}

std::optional<bool> parse_bool(const std::string& text) {
  if (text == "true" || text == "True" || text == "TRUE") {
    return true;
  }
  if (text == "false" || text == "False" || text == "FALSE") {
    return false;
  }
  return std::nullopt;
}

bool in_range(double number, const KeyOptions& options) {
  const bool above = !options.has_min() || number > options.min() ||
      (number == options.min() && !options.min_exclusive());
  const bool below = !options.has_max() || number < options.max() ||
      (number == options.max() && !options.max_exclusive());
  return above && below;
}

std::optional<double> read_number(const DocumentNode& node, const KeyOptions& options) {
  if (node.kind != Kind::kPlain) {
    return std::nullopt;
  }
  const auto number = parse_number(node.text);
  return number && in_range(*number, options) ? number : std::nullopt;
}

std::optional<int64_t> read_integer(const DocumentNode& node, const KeyOptions& options) {
  std::optional<int64_t> number;
  for (const KeyOptions::Word& word : options.words()) {
    if (node.text == word.word()) {
      number = word.value();
    }
  }
  if (!number && options.bytes()) {
    number = parse_bytes(node.text);
  } else if (!number && node.kind == Kind::kPlain) {
    number = parse_integer(node.text);
  }
  return number && in_range(static_cast<double>(*number), options) ? number : std::nullopt;
}

std::optional<std::string> read_text(
    const DocumentNode& node,
    const KeyOptions& options,
    bool numbers_too) {
  if (!options.allowed().empty()) {
    const bool known =
        std::count(options.allowed().begin(), options.allowed().end(), node.text) > 0;
    return known ? std::optional(node.text) : std::nullopt;
  }
  const bool looks_typed = node.kind == Kind::kPlain &&
      ((parse_number(node.text) && !numbers_too) || parse_bool(node.text));
  return looks_typed || node.text.empty() ? std::nullopt : std::optional(node.text);
}

/// The full keys that end in this name: where a key that stands in the wrong section belongs.
void find_homes(
    const google::protobuf::Descriptor& section,
    const std::string& path,
    const std::string& name,
    std::vector<std::string>& homes) {
  for (int i = 0; i < section.field_count(); ++i) {
    const FieldDescriptor& field = *section.field(i);
    const std::string full = join_path(path, field.name());
    if (field.name() == name) {
      homes.push_back(full);
    }
    if (is_section(field) && !field.is_repeated()) {
      find_homes(*field.message_type(), full, name, homes);
    }
  }
}

/// What to say of a key that its section does not have.
std::string unknown_key(const google::protobuf::Descriptor& section, const std::string& name) {
  const google::protobuf::Descriptor* top = &section; // sections are nested in their schema's
  while (top->containing_type() != nullptr) {
    top = top->containing_type();
  }
  std::vector<std::string> homes;
  find_homes(*top, "", name, homes);
  if (!homes.empty()) {
    return fmt::format("unknown key (did you mean {}?)", fmt::join(homes, " or "));
  }
  const std::vector<std::string> names = key_names(section);
  const std::string nearest = did_you_mean(name, names);
  return nearest.empty() ? fmt::format("unknown key; allowed: {}", fmt::join(names, ", "))
                         : "unknown key" + nearest;
}

class Walk {
 public:
  Walk(const NodeOrigin& place, Origins& origins, Problems& problems)
      : place_(place), origins_(origins), problems_(problems) {}

  void section(const DocumentNode& node, Message& message, const std::string& path) {
    for (size_t i = 0; i < node.items.size(); ++i) {
      const std::string full = join_path(path, node.keys[i]);
      const auto* field = message.GetDescriptor()->FindFieldByName(node.keys[i]);
      if (field == nullptr) {
        problem(node.items[i], full, unknown_key(*message.GetDescriptor(), node.keys[i]));
        continue;
      }
      key(node.items[i], message, *field, full);
    }
  }

 private:
  std::string where(const DocumentNode& node) const {
    return place_.has_lines ? fmt::format("{}:{}", place_.name, node.line) : place_.name;
  }

  void problem(const DocumentNode& node, const std::string& path, const std::string& what) {
    problems_.push_back(where(node) + ": " + shorten(path) + ": " + what);
  }

  void refuse(const DocumentNode& node, const std::string& path, const FieldDescriptor& field) {
    const bool quoted =
        node.kind == Kind::kQuoted && field.cpp_type() != FieldDescriptor::CPPTYPE_STRING;
    const bool plain = node.kind == Kind::kPlain &&
        field.cpp_type() == FieldDescriptor::CPPTYPE_STRING && options_of(field).allowed().empty();
    std::string nearest;
    if (node.kind == Kind::kPlain || node.kind == Kind::kQuoted) {
      const auto& allowed = options_of(field).allowed();
      nearest = did_you_mean(node.text, {allowed.begin(), allowed.end()});
    }
    problem(
        node,
        path,
        fmt::format(
            "{} is not allowed{}; give {}{}",
            describe(node),
            nearest,
            describe_allowed(field),
            quoted      ? " (numbers, true and false stand without quotes)"
                : plain ? " (a number, true or false needs quotes to be text)"
                        : ""));
  }

  void key(
      const DocumentNode& node,
      Message& message,
      const FieldDescriptor& field,
      const std::string& path) {
    const auto& reflection = *message.GetReflection();
    if (node.kind == Kind::kNull) {
      if (place_.command_line) {
        reflection.ClearField(&message, &field);
        std::erase_if(origins_, [&](const auto& origin) {
          return origin.first == path || origin.first.starts_with(path + ".");
        });
      } else {
        origins_[path] = {where(node), "", place_.kind};
        problem(
            node,
            path,
            "no value is given; give " + describe_allowed(field) + ", or leave the key out");
      }
      return;
    }
    if (is_section(field) && !field.is_repeated()) {
      sub_section(node, message, field, path);
      return;
    }
    origins_[path] = {where(node), describe(node), place_.kind};
    if (field.is_repeated()) {
      list(node, message, field, path);
    } else if (options_of(field).accepts_auto() && node.text == "auto") {
      reflection.ClearField(&message, &field);
    } else if (!value(node, message, field)) {
      refuse(node, path, field);
    }
  }

  void sub_section(
      const DocumentNode& node,
      Message& message,
      const FieldDescriptor& field,
      const std::string& path) {
    Message& sub = *message.GetReflection()->MutableMessage(&message, &field);
    const std::string& bare_word = options_of(field).bare_word();
    if (node.kind == Kind::kMap) {
      origins_[path] = {where(node), "a section", place_.kind};
      section(node, sub, path);
    } else if (node.kind != Kind::kList && !bare_word.empty()) {
      const auto* word = sub.GetDescriptor()->FindFieldByName(bare_word);
      key(node, sub, *word, join_path(path, bare_word));
    } else {
      refuse(node, path, field);
    }
  }

  void list(
      const DocumentNode& node,
      Message& message,
      const FieldDescriptor& field,
      const std::string& path) {
    message.GetReflection()->ClearField(&message, &field);
    const bool one_word = (node.kind == Kind::kPlain || node.kind == Kind::kQuoted) &&
        field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    if (one_word) { // stands for a list of one
      if (!value(node, message, field)) {
        refuse(node, path, field);
      }
      return;
    }
    const KeyOptions& options = options_of(field);
    const bool wrong_length =
        options.has_length() && node.items.size() != static_cast<size_t>(options.length());
    if (node.kind != Kind::kList || node.items.empty() || wrong_length) {
      problem(
          node,
          path,
          fmt::format(
              "{} is not allowed; give {}",
              node.kind == Kind::kList ? fmt::format("a list of {}", node.items.size())
                                       : describe(node),
              describe_allowed(field)));
      return;
    }
    for (size_t i = 0; i < node.items.size(); ++i) {
      const DocumentNode& item = node.items[i];
      const std::string item_path = fmt::format("{}[{}]", path, i);
      if (is_section(field) && item.kind == Kind::kMap) {
        section(item, *message.GetReflection()->AddMessage(&message, &field), item_path);
      } else if (is_section(field) || !value(item, message, field)) {
        refuse(item, item_path, field);
      }
    }
  }

  /// Sets the value, or adds it to a list; false where it is not allowed.
  bool value(const DocumentNode& node, Message& message, const FieldDescriptor& field) {
    if (node.kind != Kind::kPlain && node.kind != Kind::kQuoted) {
      return false;
    }
    const auto& reflection = *message.GetReflection();
    const KeyOptions& options = options_of(field);
    const auto put = [&](const auto& read, auto set, auto add) {
      if (read) {
        (reflection.*(field.is_repeated() ? add : set))(&message, &field, *read);
      }
      return read.has_value();
    };
    const bool numbers_too = options.any_number() || place_.command_line;
    using R = google::protobuf::Reflection;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return put(
            node.kind == Kind::kPlain ? parse_bool(node.text) : std::nullopt,
            &R::SetBool,
            &R::AddBool);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return put(read_number(node, options), &R::SetDouble, &R::AddDouble);
      case FieldDescriptor::CPPTYPE_INT64:
        return put(read_integer(node, options), &R::SetInt64, &R::AddInt64);
      case FieldDescriptor::CPPTYPE_STRING:
        return put(read_text(node, options, numbers_too), &R::SetString, &R::AddString);
      default:
        check(false, "the schema's key {} has a type that nothing reads", field.full_name());
        return false;
    }
  }

  const NodeOrigin& place_;
  Origins& origins_;
  Problems& problems_;
};

} // namespace

void assign(
    const DocumentNode& document,
    const NodeOrigin& place,
    Message& section,
    Origins& origins,
    Problems& problems) {
  check(document.kind == Kind::kMap, "the document of {} is no map", place.name);
  Walk(place, origins, problems).section(document, section, place.path);
}

} // namespace palimpsest
