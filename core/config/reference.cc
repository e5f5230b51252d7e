#include <palimpsest/core/config/presets.h>
#include <palimpsest/core/config/reference.h>
#include <palimpsest/core/config/schema.h>
#include <palimpsest/core/config/supported.h>

#include <fmt/format.h>

namespace palimpsest {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr const char* kIntroduction = R"(# Configuration

All settings of a run are keys of one file, YAML or JSON (by its ending `.json`). The shortest valid config is three keys:

```yaml
model: {preset: tiny}
data: {files: [corpus.txt]}
optimizer: {learning_rate: 1e-3}
```

`palimpsest train run.yaml training.steps=100 'optimizer.betas=[0.9, 0.95]'` overrides keys by their dotted names; `key=null`
takes a key of the file back. `palimpsest config show run.yaml` prints every value and where it came from.

- Unknown keys, duplicates, wrong types, values out of range and contradictions are errors, all listed at once.
- Numbers, `true` and `false` stand without quotes: `2e-5` is a number, `"2e-5"` is text. Sizes such as `8GiB` may be quoted.
- A key left empty or `null` in a file is an error: leave it out to get its default.
- YAML aliases, tags and several documents in one file are refused.

This page is written by `palimpsest config reference` from the schema.
)";

std::string default_cell(const FieldDescriptor& field) {
  if (options_of(field).required()) {
    return "required";
  }
  if (const auto text = default_text(field)) {
    return "`" + *text + "`";
  }
  if (is_section(field)) {
    return options_of(field).optional_section() ? "not set" : "";
  }
  return options_of(field).when_unset();
}

std::string allowed_cell(const FieldDescriptor& field) {
  if (!is_section(field)) {
    return describe_allowed(field);
  }
  const std::string& bare_word = options_of(field).bare_word();
  return std::string(field.is_repeated() ? "a list of sections" : "a section") +
      (bare_word.empty() ? "" : ", or just its `" + bare_word + "`");
}

void section(const Descriptor& descriptor, const std::string& path, std::string& out) {
  out += "\n| key | allowed | default | meaning |\n|---|---|---|---|\n";
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    out += fmt::format(
        "| `{}` | {} | {} | {} |\n",
        field.name(),
        allowed_cell(field),
        default_cell(field),
        options_of(field).help());
  }
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (is_section(field)) {
      const std::string full = join_path(path, field.name()) + (field.is_repeated() ? "[]" : "");
      out += fmt::format("\n## {}\n", full);
      section(*field.message_type(), full, out);
    }
  }
}

} // namespace

std::string config_reference() {
  std::string out = kIntroduction;
  out += "\n## Sections\n";
  section(*RunConfig::descriptor(), "", out);
  out += "\n## Presets\n\n| model.preset | shape | for |\n|---|---|---|\n";
  for (const Preset& preset : presets()) {
    out += fmt::format("| `{}` | `{}` | {} |\n", preset.name, preset.model, preset.help);
  }
  out +=
      "\n## Not in this version\n\nThese are refused by name, never ignored.\n\n"
      "| key | works | missing |\n|---|---|---|\n";
  for (const Limit& limit : limits()) {
    const std::string works = limit.works.empty()
        ? "leaving it out"
        : fmt::format("`{}`", fmt::join(limit.works, "`, `"));
    out += fmt::format("| `{}` | {} | {} |\n", limit.key, works, limit.feature);
  }
  return out;
}

} // namespace palimpsest
