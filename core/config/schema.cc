#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/schema.h>

#include <charconv>
#include <cmath>

namespace palimpsest {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

namespace {

/// " above 0", " from 1 to 8", " of at least 0 and below 1" or nothing.
std::string describe_range(const KeyOptions& options) {
  const bool inclusive = !options.min_exclusive() && !options.max_exclusive();
  if (options.has_min() && options.has_max() && inclusive) {
    return " from " + number_text(options.min()) + " to " + number_text(options.max());
  }
  std::string text;
  if (options.has_min()) {
    text += (options.min_exclusive() ? " above " : " of at least ") + number_text(options.min());
  }
  if (options.has_max()) {
    text += text.empty() ? "" : " and";
    text += (options.max_exclusive() ? " below " : " of at most ") + number_text(options.max());
  }
  return text;
}

std::string describe_item(const FieldDescriptor& field) {
  const KeyOptions& options = options_of(field);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number" + describe_range(options);
    case FieldDescriptor::CPPTYPE_INT64:
      return options.bytes() ? fmt::format("a size{}: {}", describe_range(options), kSizesAllowed)
                             : "an integer" + describe_range(options);
    default:
      return options.allowed().empty() ? "text"
                                       : fmt::format("{}", fmt::join(options.allowed(), ", "));
  }
}

} // namespace

const KeyOptions& options_of(const FieldDescriptor& field) {
  return field.options().GetExtension(about);
}

std::string item_text(const Message& section, const FieldDescriptor& field, int index) {
  const auto& reflection = *section.GetReflection();
  const bool repeated = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return (repeated ? reflection.GetRepeatedBool(section, &field, index)
                       : reflection.GetBool(section, &field))
          ? "true"
          : "false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return number_text(
          repeated ? reflection.GetRepeatedDouble(section, &field, index)
                   : reflection.GetDouble(section, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return std::to_string(
          repeated ? reflection.GetRepeatedInt64(section, &field, index)
                   : reflection.GetInt64(section, &field));
    default:
      return repeated ? reflection.GetRepeatedString(section, &field, index)
                      : reflection.GetString(section, &field);
  }
}

bool is_section(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

std::vector<std::string> key_names(const Descriptor& section) {
  std::vector<std::string> names;
  for (int i = 0; i < section.field_count(); ++i) {
    names.push_back(section.field(i)->name());
  }
  return names;
}

std::string join_path(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

std::string describe_allowed(const FieldDescriptor& field) {
  const KeyOptions& options = options_of(field);
  if (is_section(field)) {
    const std::string keys = fmt::format("{}", fmt::join(key_names(*field.message_type()), ", "));
    std::string text =
        field.is_repeated() ? "a list of sections with the keys " : "a section with the keys ";
    text += keys;
    if (options.has_bare_word()) {
      text += ", or just its " + options.bare_word();
    }
    return text;
  }
  std::string text = describe_item(field);
  for (const KeyOptions::Word& word : options.words()) {
    text += fmt::format(", or {} for {}", word.word(), word.value());
  }
  text += options.accepts_auto() ? ", or auto" : "";
  if (field.is_repeated() && options.has_length()) {
    return fmt::format("a list of {}, each {}", options.length(), text);
  }
  return field.is_repeated() ? "a list, each item " + text : text;
}

std::optional<std::string> default_text(const FieldDescriptor& field) {
  if (options_of(field).has_default_list()) {
    return options_of(field).default_list();
  }
  if (!field.has_default_value()) {
    return std::nullopt;
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return field.default_value_bool() ? "true" : "false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return number_text(field.default_value_double());
    case FieldDescriptor::CPPTYPE_INT64:
      return std::to_string(field.default_value_int64());
    default:
      return field.default_value_string();
  }
}

std::string number_text(double number) {
  constexpr double kPlainIntegers = 1e15; // 1000000 rather than 1e+06
  if (std::abs(number) < kPlainIntegers && number == std::floor(number)) {
    return std::to_string(static_cast<int64_t>(number));
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number);
  return std::string(buffer, end.ptr);
}

std::optional<std::string> value_text(const Message& section, const FieldDescriptor& field) {
  const auto& reflection = *section.GetReflection();
  if (!field.is_repeated()) {
    return reflection.HasField(section, &field) ? item_text(section, field, 0)
                                                : default_text(field);
  }
  std::vector<std::string> items;
  for (int i = 0; i < reflection.FieldSize(section, &field); ++i) {
    items.push_back(is_section(field) ? "{...}" : item_text(section, field, i));
  }
  if (items.empty()) {
    return default_text(field);
  }
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::optional<std::string> value_text(const RunConfig& config, std::string_view key) {
  const Message* section = &config;
  for (std::string_view rest = key;;) {
    const size_t dot = rest.find('.');
    const auto* field = section->GetDescriptor()->FindFieldByName(std::string(rest.substr(0, dot)));
    check(field != nullptr, "the schema has no key {}", key);
    if (is_section(*field) && !field->is_repeated()) {
      if (!section->GetReflection()->HasField(*section, field) &&
          options_of(*field).optional_section()) {
        return std::nullopt;
      }
      if (dot == std::string_view::npos) {
        return "set";
      }
      section = &section->GetReflection()->GetMessage(*section, field);
      rest.remove_prefix(dot + 1);
      continue;
    }
    check(dot == std::string_view::npos, "the schema has no key {}", key);
    return value_text(*section, *field);
  }
}

} // namespace palimpsest
