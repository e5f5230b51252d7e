#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/assign.h>
#include <palimpsest/core/config/derive.h>
#include <palimpsest/core/config/document.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/config/presets.h>
#include <palimpsest/core/config/schema.h>
#include <palimpsest/core/config/supported.h>
#include <palimpsest/core/config/validate.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <system_error>

namespace palimpsest {
namespace {

using google::protobuf::Message;
using Kind = DocumentNode::Kind;

/// No config is longer; a wrong file (a model, a data set) is refused before it is parsed.
constexpr size_t kLongestConfig = 1 << 20;

std::string read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw UserError("{}: is a folder; give the config file", path.string());
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw UserError(
        "{}: cannot be read: {}; give a YAML or JSON file",
        path.string(),
        std::generic_category().message(errno));
  }
  std::string text(kLongestConfig + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kLongestConfig) {
    throw UserError("{}: is longer than 1 MiB, so it is no config", path.string());
  }
  return text;
}

/// An override's value as it stands after the `=`.
DocumentNode parse_value(const std::string& value, const std::string& where, Problems& problems) {
  if (std::string_view("[{\"'").find(value.front()) != std::string_view::npos) {
    return parse_document(value, where, problems);
  }
  DocumentNode node;
  node.kind = value == "null" ? Kind::kNull : Kind::kPlain;
  node.text = value;
  return node;
}

/// {a: {b: value}} for "a.b=value".
DocumentNode parse_override(const std::string& text, const std::string& where, Problems& problems) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw UserError(
        "{}: an override reads key=value, such as training.steps=100; key=null takes a key back",
        where);
  }
  std::string path = text.substr(0, equals);
  if (std::count(path.begin(), path.end(), '.') > kDeepestNesting) {
    throw UserError(
        "override with {} dots: unknown key", std::count(path.begin(), path.end(), '.'));
  }
  DocumentNode node = parse_value(text.substr(equals + 1), where, problems);
  for (;;) {
    const size_t dot = path.rfind('.');
    DocumentNode section;
    section.kind = Kind::kMap;
    section.keys = {path.substr(dot == std::string::npos ? 0 : dot + 1)};
    section.items.push_back(std::move(node));
    node = std::move(section);
    if (dot == std::string::npos) {
      return node;
    }
    path.resize(dot);
  }
}

class Loading {
 public:
  RunConfig run(
      std::string_view text,
      const std::filesystem::path& name,
      const std::vector<std::string>& overrides) {
    const DocumentNode document = parse_document(text, name, problems_);
    if (document.kind != Kind::kMap) {
      throw UserError(
          "{}: holds {} instead of keys such as model, data and optimizer",
          name.string(),
          describe(document));
    }
    assign(document, {name.string()}, config_, origins_, problems_);
    assign_overrides(overrides);
    assign_preset();
    fill(config_);
    derive(name);
    validate(config_, origins_, problems_);
    check_supported(config_, origins_, problems_);
    throw_problems(name.string());
    return std::move(config_);
  }

  Origins take_origins() {
    return std::move(origins_);
  }

 private:
  void assign_overrides(const std::vector<std::string>& overrides) {
    std::set<std::string> seen;
    for (const std::string& text : overrides) {
      NodeOrigin place;
      place.name = "override " + shorten(text);
      place.has_lines = false;
      place.command_line = true;
      const std::string key = text.substr(0, text.find('='));
      if (!seen.insert(key).second) {
        problems_.push_back(place.name + ": overridden twice; give it once");
      }
      assign(parse_override(text, place.name, problems_), place, config_, origins_, problems_);
    }
  }

  /// A preset comes last because overrides may name it, but what was given beside it wins.
  void assign_preset() {
    for (const Preset& preset : presets()) {
      if (config_.model().preset() != preset.name) {
        continue;
      }
      NodeOrigin place;
      place.name = std::string("preset ") + preset.name;
      place.has_lines = false;
      place.path = "model";
      place.kind = Origin::Kind::kPreset;
      RunConfig::Model model;
      Origins origins;
      assign(parse_document(preset.model, place.name, problems_), place, model, origins, problems_);
      if (config_.model().has_family() && config_.model().family() != model.family()) {
        problems_.push_back(fmt::format(
            "{} and {} contradict each other; the preset's family is {}",
            name_key("model.preset", origins_),
            name_key("model.family", origins_),
            model.family()));
      }
      model.MergeFrom(config_.model());
      *config_.mutable_model() = model;
      origins_.merge(origins); // keeps what is there
    }
  }

  /// Sections that are not there, and lists that have a default.
  void fill(Message& section) {
    const auto& reflection = *section.GetReflection();
    for (int i = 0; i < section.GetDescriptor()->field_count(); ++i) {
      const auto& field = *section.GetDescriptor()->field(i);
      const KeyOptions& options = options_of(field);
      if (is_section(field) && !field.is_repeated()) {
        if (!options.optional_section() || reflection.HasField(section, &field)) {
          fill(*reflection.MutableMessage(&section, &field));
        }
      } else if (options.has_default_list() && reflection.FieldSize(section, &field) == 0) {
        DocumentNode document;
        document.kind = Kind::kMap;
        document.keys = {field.name()};
        document.items = {parse_document(options.default_list(), "default", problems_)};
        Origins none;
        assign(document, {"default of " + field.full_name()}, section, none, problems_);
      }
    }
  }

  void derive(const std::filesystem::path& name) {
    RunConfig::Model& model = *config_.mutable_model();
    if (model.family() == "gemma" || model.family() == "gpt2") {
      if (!model.has_tie_word_embeddings()) {
        model.set_tie_word_embeddings(true);
        derived("model.tie_word_embeddings", "family");
      }
      if (!model.has_hidden_act()) {
        model.set_hidden_act("gelu_pytorch_tanh");
        derived("model.hidden_act", "family");
      }
    }
    if (model.family() == "gpt2" && !model.has_intermediate_size() && model.has_hidden_size()) {
      model.set_intermediate_size(4 * model.hidden_size());
      derived("model.intermediate_size", "4 x hidden_size");
    }
    const bool grouped = model.has_family() && model.family() != "mlp" && model.family() != "gpt2";
    if (grouped && model.has_num_attention_heads()) {
      if (!model.has_num_key_value_heads()) {
        model.set_num_key_value_heads(model.num_attention_heads());
        derived("model.num_key_value_heads", "num_attention_heads");
      }
      if (!model.has_head_dim() && model.hidden_size() % model.num_attention_heads() == 0 &&
          model.hidden_size() > 0) {
        model.set_head_dim(model.hidden_size() / model.num_attention_heads());
        derived("model.head_dim", "hidden_size / num_attention_heads");
      }
    }
    RunConfig::Data& data = *config_.mutable_data();
    if (!data.has_format() && !origins_.contains("data.format")) {
      derive_format(data);
    }
    if (!data.has_sequence_length() && model.has_family() && data.format() != "tensors") {
      data.set_sequence_length(usual_sequence_length(model.max_position_embeddings()));
      derived("data.sequence_length", "model.max_position_embeddings, at most 512");
    }
    if (!config_.training().has_output() && !origins_.contains("training.output")) {
      config_.mutable_training()->set_output("runs/" + name.stem().string());
      derived("training.output", "the config file's name");
    }
  }

  void derive_format(RunConfig::Data& data) {
    std::string first = data.files().empty() ? "" : data.files(0);
    if (first.empty() && !data.sources().empty()) {
      first = data.sources(0).path();
      if (data.sources(0).has_format()) {
        data.set_format(data.sources(0).format());
        derived("data.format", "the first source");
        return;
      }
    }
    static constexpr const char* kFormats[][2] = {
        {".txt", "text"},
        {".bin", "tokens"},
        {".safetensors", "tensors"},
        {".jsonl", "messages"},
        {".json", "messages"},
        {".parquet", "messages"}}; // the last is refused when it is opened, with the conversion
    for (const auto& [ending, format] : kFormats) {
      if (first.ends_with(ending)) {
        data.set_format(format);
        derived("data.format", "the first file's ending");
      }
    }
  }

  void derived(const std::string& key, const std::string& from) {
    origins_[key] = {"from " + from, "", Origin::Kind::kDerived};
  }

  void throw_problems(const std::string& name) const {
    if (problems_.empty()) {
      return;
    }
    if (problems_.size() == 1) {
      throw UserError("{}", problems_.front());
    }
    constexpr size_t kMostListed = 100;
    std::string list;
    for (size_t i = 0; i < std::min(problems_.size(), kMostListed); ++i) {
      list += "\n  " + problems_[i];
    }
    if (problems_.size() > kMostListed) {
      list += fmt::format("\n  and {} more", problems_.size() - kMostListed);
    }
    throw UserError("{}: {} settings are wrong:{}", name, problems_.size(), list);
  }

  RunConfig config_;
  Origins origins_;
  Problems problems_;
};

} // namespace

RunConfig load_config(
    const std::filesystem::path& path,
    const std::vector<std::string>& overrides,
    Origins* origins) {
  return load_config_text(read_file(path), path, overrides, origins);
}

RunConfig load_config_text(
    std::string_view text,
    const std::filesystem::path& name,
    const std::vector<std::string>& overrides,
    Origins* origins) {
  Loading loading;
  RunConfig config = loading.run(text, name, overrides);
  if (origins != nullptr) {
    *origins = loading.take_origins();
  }
  return config;
}

} // namespace palimpsest
