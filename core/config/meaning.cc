#include <palimpsest/core/config/derive.h>
#include <palimpsest/core/config/meaning.h>
#include <palimpsest/core/config/schema.h>
#include <palimpsest/core/config/validate.h>

#include <fmt/format.h>

#include <optional>
#include <string_view>

namespace palimpsest {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

/// Whether the course of the learning rate depends on how many steps there are.
bool rate_depends_on_length(const RunConfig& config) {
  const RunConfig::Scheduler& scheduler = config.scheduler();
  return scheduler.name() != "constant" ||
      (!scheduler.has_warmup_steps() && scheduler.warmup_ratio() > 0);
}

/// A key's value as text, whatever it holds; empty where nothing is set.
std::optional<std::string> text_of(const Message& section, const FieldDescriptor& field) {
  if (!is_section(field)) {
    return value_text(section, field);
  }
  std::string items;
  for (int i = 0; i < section.GetReflection()->FieldSize(section, &field); ++i) {
    const Message& item = section.GetReflection()->GetRepeatedMessage(section, &field, i);
    items += (i > 0 ? ", {" : "{") + item.ShortDebugString() + "}";
  }
  return items.empty() ? std::nullopt : std::optional("[" + items + "]");
}

class Comparison {
 public:
  Comparison(const RunConfig& before, const RunConfig& now) : before_(before), now_(now) {}

  std::vector<std::string> run() {
    compare(before_, now_, "", true);
    return std::move(lines_);
  }

 private:
  void compare(const Message& before, const Message& now, const std::string& path, bool changes) {
    const Descriptor& descriptor = *before.GetDescriptor();
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const FieldDescriptor& field = *descriptor.field(i);
      const std::string key = join_path(path, field.name());
      const KeyOptions& options = options_of(field);
      const bool matters = options.has_changes_numbers() ? options.changes_numbers() : changes;
      if (!in_effect(before_, {}, key) && !in_effect(now_, {}, key)) {
        continue;
      }
      if (is_section(field) && !field.is_repeated()) {
        compare_section(before, now, field, key, matters);
      } else if (matters && !is_free_length(key)) {
        compare_text(key, text_of(before, field), text_of(now, field));
      }
    }
  }

  void compare_section(
      const Message& before,
      const Message& now,
      const FieldDescriptor& field,
      const std::string& key,
      bool matters) {
    const bool had = before.GetReflection()->HasField(before, &field);
    const bool has = now.GetReflection()->HasField(now, &field);
    if (options_of(field).optional_section() && had != has) {
      if (matters) {
        lines_.push_back(
            fmt::format("{}: {} -> {}", key, had ? "set" : "not set", has ? "set" : "not set"));
      }
      return;
    }
    compare(
        before.GetReflection()->GetMessage(before, &field),
        now.GetReflection()->GetMessage(now, &field),
        key,
        matters);
  }

  bool is_free_length(const std::string& key) const {
    return (key == "training.epochs" || key == "training.steps") &&
        !rate_depends_on_length(before_) && !rate_depends_on_length(now_);
  }

  void compare_text(
      const std::string& key,
      const std::optional<std::string>& before,
      const std::optional<std::string>& now) {
    if (before != now) {
      lines_.push_back(
          fmt::format("{}: {} -> {}", key, before.value_or("not set"), now.value_or("not set")));
    }
  }

  const RunConfig& before_;
  const RunConfig& now_;
  std::vector<std::string> lines_;
};

} // namespace

RunConfig resolve_batch(RunConfig config, int64_t world) {
  const BatchSizes batch = derive_batch(config, world);
  RunConfig::Training& training = *config.mutable_training();
  training.set_global_batch_size(batch.global);
  training.set_micro_batch_size(batch.micro);
  training.set_gradient_accumulation_steps(batch.accumulation);
  return config;
}

std::vector<std::string> changes_of_meaning(const RunConfig& before, const RunConfig& now) {
  return Comparison(before, now).run();
}

bool changes_numbers(std::string_view key) {
  const Descriptor* section = RunConfig::descriptor();
  bool changes = true;
  while (section != nullptr) {
    const size_t dot = key.find('.');
    const FieldDescriptor* field = section->FindFieldByName(std::string(key.substr(0, dot)));
    if (field == nullptr) {
      return changes;
    }
    if (options_of(*field).has_changes_numbers()) {
      changes = options_of(*field).changes_numbers();
    }
    section = is_section(*field) && dot != std::string_view::npos ? field->message_type() : nullptr;
    key.remove_prefix(dot == std::string_view::npos ? key.size() : dot + 1);
  }
  return changes;
}

} // namespace palimpsest
