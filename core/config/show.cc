#include <palimpsest/core/config/derive.h>
#include <palimpsest/core/config/meaning.h>
#include <palimpsest/core/config/schema.h>
#include <palimpsest/core/config/show.h>
#include <palimpsest/core/config/validate.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>

namespace palimpsest {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

/// Text as YAML: bare where it is plainly a word, else in quotes.
std::string quote(const std::string& text) {
  const bool word = !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0 &&
      std::all_of(text.begin(), text.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == '/';
      });
  static constexpr const char* kReserved[] = {"true", "false", "null", "inf", "nan", "infinity"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  const bool reserved = std::count(std::begin(kReserved), std::end(kReserved), lower) > 0;
  return word && !reserved ? text : nlohmann::json(text).dump();
}

/// Whether a line is more than a comment.
bool has_values(std::string_view lines) {
  while (!lines.empty()) {
    if (lines[lines.find_first_not_of(' ')] != '#') {
      return true;
    }
    lines.remove_prefix(lines.find('\n') + 1);
  }
  return false;
}

class Printer {
 public:
  Printer(const RunConfig& config, const Origins& origins, bool comments)
      : config_(config), origins_(origins), comments_(comments) {}

  std::string run() {
    section(config_, "", 0);
    return std::move(out_);
  }

 private:
  void section(const Message& message, const std::string& path, int depth) {
    const auto& descriptor = *message.GetDescriptor();
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const FieldDescriptor& field = *descriptor.field(i);
      const std::string full = join_path(path, field.name());
      if (in_effect(config_, origins_, full)) {
        key(message, field, full, depth);
      }
    }
  }

  void key(
      const Message& message,
      const FieldDescriptor& field,
      const std::string& path,
      int depth) {
    const std::string indent(2 * static_cast<size_t>(depth), ' ');
    const auto& reflection = *message.GetReflection();
    if (is_section(field) && !field.is_repeated()) {
      if (reflection.HasField(message, &field)) {
        const size_t header = out_.size();
        section(reflection.GetMessage(message, &field), path, depth + 1);
        out_.insert(header, header_of(field, indent, std::string_view(out_).substr(header)));
      } else {
        comment(indent + "# " + field.name() + ": not set\n");
      }
      return;
    }
    if (!value_text(message, field)) {
      comment(fmt::format("{}# {}: {}\n", indent, field.name(), options_of(field).when_unset()));
      return;
    }
    constexpr int kCommentColumn = 48;
    const std::string line = indent + field.name() + ": " + value(message, field);
    out_ +=
        comments_ ? fmt::format("{:<{}}  # {}\n", line, kCommentColumn, origin(path)) : line + "\n";
  }

  /// Of a section whose keys print as `lines`. One that is always there needs no place in the config
  /// where none of its keys has a value.
  std::string header_of(
      const FieldDescriptor& field,
      const std::string& indent,
      std::string_view lines) const {
    if (has_values(lines)) {
      return indent + field.name() + ":\n";
    }
    if (options_of(field).optional_section()) {
      return indent + field.name() + ": {}\n";
    }
    return comments_ ? indent + "# " + field.name() + ":\n" : "";
  }

  void comment(const std::string& line) {
    out_ += comments_ ? line : "";
  }

  std::string origin(const std::string& path) const {
    const auto found = origins_.find(path);
    return found == origins_.end() ? "default" : found->second.where;
  }

 public:
  static std::string value(const Message& message, const FieldDescriptor& field) {
    const bool text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    if (!field.is_repeated()) {
      const std::string plain = *value_text(message, field);
      return text ? quote(plain) : plain;
    }
    std::vector<std::string> items;
    const auto& reflection = *message.GetReflection();
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      if (is_section(field)) {
        items.push_back(inline_section(reflection.GetRepeatedMessage(message, &field, i)));
      } else if (text) {
        items.push_back(quote(reflection.GetRepeatedString(message, &field, i)));
      } else {
        items.push_back(item_text(message, field, i));
      }
    }
    return fmt::format("[{}]", fmt::join(items, ", "));
  }

  static std::string inline_section(const Message& message) {
    std::vector<std::string> keys;
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor& field = *message.GetDescriptor()->field(i);
      if (message.GetReflection()->HasField(message, &field)) {
        keys.push_back(field.name() + ": " + value(message, field));
      }
    }
    return fmt::format("{{{}}}", fmt::join(keys, ", "));
  }

 private:
  const RunConfig& config_;
  const Origins& origins_;
  bool comments_;
  std::string out_;
};

/// Keys with another value than their default. Defaults are in the config as if somebody had given
/// them, which would take keys that exclude them out of effect.
void find_set_keys(const Message& section, const std::string& path, Origins& set) {
  std::vector<const FieldDescriptor*> fields;
  section.GetReflection()->ListFields(section, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string key = join_path(path, field->name());
    if (is_section(*field) && !field->is_repeated()) {
      find_set_keys(section.GetReflection()->GetMessage(section, field), key, set);
      continue;
    }
    const std::string value =
        field->is_repeated() ? Printer::value(section, *field) : *value_text(section, *field);
    if (default_text(*field) != value) {
      set.emplace(key, Origin());
    }
  }
}

} // namespace

std::string show_config(const RunConfig& config, const Origins& origins, int64_t world) {
  Origins shown_origins = origins;
  const auto derive = [&](const char* key, bool given) {
    if (!given) {
      shown_origins[key] = {"derived", "", Origin::Kind::kDerived};
    }
  };
  const RunConfig::Training& given = config.training();
  derive("training.global_batch_size", given.has_global_batch_size());
  derive("training.micro_batch_size", given.has_micro_batch_size());
  derive("training.gradient_accumulation_steps", given.has_gradient_accumulation_steps());
  const BatchSizes batch = derive_batch(config, world);
  RunConfig shown = resolve_batch(config, world);
  RunConfig::Parallel& parallel = *shown.mutable_parallel();
  if (parallel.has_shard() && !parallel.has_replicate()) {
    parallel.set_replicate(std::max<int64_t>(1, batch.data_parallel / parallel.shard()));
    derive("parallel.replicate", false);
  }
  return Printer(shown, shown_origins, true).run() +
      fmt::format(
             "# batch: {} samples a step = {} (micro-batch) x {} (accumulation) x {} "
             "(data-parallel size)\n",
             batch.global,
             batch.micro,
             batch.accumulation,
             batch.data_parallel);
}

std::string config_text(const RunConfig& config, int64_t world) {
  const RunConfig resolved = resolve_batch(config, world);
  Origins set; // of two keys that exclude each other the one that is set is printed
  find_set_keys(resolved, "", set);
  return Printer(resolved, set, false).run();
}

} // namespace palimpsest
