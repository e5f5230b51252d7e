#include <palimpsest/core/io/peft_folder.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/base/pattern.h>
#include <palimpsest/core/io/config_reader.h>
#include <palimpsest/core/io/json.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace palimpsest {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTensorsName = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";
constexpr int64_t kMaxRank = 65536;
constexpr double kMaxAlpha = 1e9;
constexpr int64_t kMaxLayer = 1'000'000;

/// What is read below, and what says nothing about numbers.
constexpr std::array<std::string_view, 27> kUnderstood = {
    "peft_type",
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "bias",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
    "init_lora_weights",
    "fan_in_fan_out", // follows from the family
    "task_type",
    "base_model_name_or_path",
    "revision",
    "auto_mapping",
    "inference_mode",
    "peft_version",
    "runtime_config",
    "megatron_core", // of megatron_config alone
    "qalora_group_size",
    "ensure_weight_tying",
    "lora_bias",
    "use_dora",
    "modules_to_save"};

/// Whether a key is as if it were not there.
bool is_off(const nlohmann::json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
      (value.is_structured() && value.empty());
}

/// The texts of a key that is one or a list of them.
std::vector<std::string> texts(
    const ConfigReader& keys,
    const std::string& key,
    const nlohmann::json& value) {
  std::vector<std::string> result;
  for (const nlohmann::json& item : value) {
    if (!item.is_string()) {
      keys.refuse(key, "it must be a list of names");
    }
    result.push_back(item.get<std::string>());
  }
  return result;
}

/// A choice of layers as PEFT's target_modules and exclude_modules are: an expression that whole
/// names match, or a list of ends of names.
class Choice {
 public:
  Choice(const ConfigReader& keys, const std::string& file, const std::string& key) {
    const nlohmann::json* value = keys.find(key);
    if (value == nullptr) {
      return;
    }
    if (value->is_string()) {
      const auto text = value->get<std::string>();
      all_ = text == "all-linear";
      if (!all_) {
        expression_.emplace(fmt::format("{}: {}", file, key), text);
      }
    } else if (value->is_array()) {
      names_ = texts(keys, key, *value);
    } else {
      keys.refuse(key, "it must be a list of names, an expression or all-linear");
    }
  }

  bool contains(const std::string& layer) const {
    return all_ || (expression_ && expression_->matches(layer)) ||
        std::ranges::any_of(
               names_, [&](const std::string& name) { return ends_in_name(layer, name); });
  }
  const std::vector<std::string>& names() const {
    return names_;
  }
  bool is_text() const {
    return all_ || expression_;
  }

 private:
  bool all_ = false;
  std::optional<Pattern> expression_;
  std::vector<std::string> names_;
};

/// layers_to_transform and layers_pattern: of which layers of the model, where not of all.
class LayerNumbers {
 public:
  explicit LayerNumbers(const ConfigReader& keys) {
    if (const auto* value = keys.find("layers_to_transform"); value != nullptr) {
      const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
      for (const nlohmann::json& number : list) {
        if (!number.is_number_integer() || number < 0 || number > kMaxLayer) {
          keys.refuse("layers_to_transform", "it must be a list of layers' numbers");
        }
        numbers_.insert(number.get<int64_t>());
      }
    }
    if (const auto* value = keys.find("layers_pattern"); value != nullptr) {
      const nlohmann::json list = value->is_string() ? nlohmann::json::array({*value}) : *value;
      folders_ = texts(keys, "layers_pattern", list);
    }
  }

  bool given() const {
    return !numbers_.empty();
  }
  /// "model.layers.3.mlp.up_proj": the number 3 below "layers".
  bool contains(const std::string& layer) const {
    if (numbers_.empty()) {
      return true;
    }
    size_t begin = 0;
    std::string before;
    for (size_t end = layer.find('.'); end != std::string::npos; end = layer.find('.', begin)) {
      const std::string part = layer.substr(begin, end - begin);
      if (!before.empty() && part.find_first_not_of("0123456789") == std::string::npos) {
        const bool named =
            folders_.empty() || std::ranges::find(folders_, before) != folders_.end();
        return named && numbers_.contains(std::stoll(part));
      }
      before = part;
      begin = end + 1;
    }
    return false;
  }

 private:
  std::set<int64_t> numbers_;
  std::vector<std::string> folders_;
};

/// rank_pattern and alpha_pattern: values by expressions that ends of names match.
class Exceptions {
 public:
  Exceptions(const ConfigReader& keys, std::string file, std::string key)
      : file_(std::move(file)), key_(std::move(key)) {
    const nlohmann::json* object = keys.find(key_);
    if (object == nullptr) {
      return;
    }
    if (!object->is_object()) {
      keys.refuse(key_, "it must be an object of numbers by names");
    }
    for (const auto& [expression, value] : object->items()) {
      if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() > kMaxAlpha) {
        keys.refuse(key_, "its values must be positive numbers");
      }
      entries_.push_back(
          {.expression = expression,
           .pattern =
               Pattern(fmt::format("{}: {}", file_, key_), fmt::format("(.*\\.)?({})", expression)),
           .value = value.get<double>()});
    }
  }

  /// Empty where none is for this layer. PEFT takes the first of several in the file's order, so
  /// those must agree.
  std::optional<double> of(const std::string& layer) {
    const Entry* found = nullptr;
    for (Entry& entry : entries_) {
      if (!entry.pattern.matches(layer)) {
        continue;
      }
      entry.used = true;
      if (found != nullptr && found->value != entry.value) {
        throw UserError(
            "{}: {} gives {} two values, by {} and by {}; make them match different layers",
            file_,
            key_,
            layer,
            quote(found->expression),
            quote(entry.expression));
      }
      found = &entry;
    }
    return found == nullptr ? std::nullopt : std::optional(found->value);
  }

  void check_all_used() const {
    for (const Entry& entry : entries_) {
      if (!entry.used) {
        throw UserError(
            "{}: {} {} is for no layer that has an adapter; correct it or leave it out",
            file_,
            key_,
            quote(entry.expression));
      }
    }
  }

 private:
  struct Entry {
    std::string expression;
    Pattern pattern;
    double value = 0;
    bool used = false;
  };
  std::string file_;
  std::string key_;
  std::vector<Entry> entries_;
};

void refuse_unsupported(const ConfigReader& keys, const nlohmann::json& json) {
  if (keys.string("peft_type").value_or("") != "LORA") {
    keys.refuse("peft_type", "only LORA is read");
  }
  if (const auto bias = keys.string("bias"); bias && *bias != "none") {
    keys.refuse("bias", "biases are not trained with adapters; only \"none\" is read");
  }
  // Some ways to begin change the base's weights, so that the adapter does not fit them as they are.
  if (const auto* init = keys.find("init_lora_weights"); init != nullptr && init->is_string()) {
    const auto way = init->get<std::string>();
    if (way != "gaussian" && way != "orthogonal" && way != "eva") {
      keys.refuse(
          "init_lora_weights",
          "it changes the base's weights; let PEFT convert the adapter to plain LoRA");
    }
  }
  const std::set<std::string_view> refused = {"lora_bias", "use_dora", "modules_to_save"};
  for (const auto& [key, value] : json.items()) {
    const bool known = std::ranges::find(kUnderstood, key) != kUnderstood.end();
    if (!is_off(value) && (!known || refused.contains(key))) {
      keys.refuse(key, "this is not supported: only plain LoRA and rsLoRA are read");
    }
  }
}

/// Every name of a list must be a layer's.
void check_names(
    const ConfigReader& keys,
    const Choice& targets,
    std::span<const LinearDeclaration> layers) {
  for (const std::string& name : targets.names()) {
    if (std::ranges::none_of(
            layers, [&](const auto& layer) { return ends_in_name(layer.name, name); })) {
      keys.refuse(
          "target_modules",
          fmt::format(
              "no linear layer of the model is called {}; it has {}",
              quote(name),
              last_parts(layers)));
    }
  }
}

nlohmann::json plain_number(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < kMaxAlpha;
  return whole ? nlohmann::json(static_cast<int64_t>(value)) : nlohmann::json(value);
}

/// Last parts of names where these choose no other layer, else whole names.
std::vector<std::string> target_names(
    const AdapterSet& set,
    std::span<const LinearDeclaration> layers) {
  std::set<std::string> whole;
  std::set<std::string> last;
  for (const auto& [name, shape] : set.layers) {
    whole.insert(name);
    last.insert(name.substr(name.rfind('.') + 1));
  }
  const bool others = std::ranges::any_of(layers, [&](const LinearDeclaration& layer) {
    return !whole.contains(layer.name) &&
        last.contains(layer.name.substr(layer.name.rfind('.') + 1));
  });
  const std::set<std::string>& names = others ? whole : last;
  return {names.begin(), names.end()};
}

} // namespace

AdapterSet parse_peft_config(
    std::string_view json,
    const std::string& file,
    std::span<const LinearDeclaration> layers) {
  const nlohmann::json object = parse_json(json, file);
  const ConfigReader keys(object, file);
  refuse_unsupported(keys, object);
  AdapterSet set{
      .layers = {},
      .usual =
          {.rank = keys.optional_integer("r", 1, kMaxRank).value_or(8),
           .alpha = keys.number("lora_alpha", 0, kMaxAlpha).value_or(8)},
      .dropout = keys.number("lora_dropout", 0, 1).value_or(0),
      .rslora = keys.boolean("use_rslora").value_or(false)};
  if (set.usual.alpha <= 0) {
    keys.refuse("lora_alpha", "it must be positive");
  }
  if (set.dropout >= 1) {
    keys.refuse("lora_dropout", "it must be below 1");
  }
  const Choice targets(keys, file, "target_modules");
  const Choice excluded(keys, file, "exclude_modules");
  const LayerNumbers numbers(keys);
  if (numbers.given() && targets.is_text()) {
    keys.refuse("layers_to_transform", "it goes only with a list of target_modules");
  }
  check_names(keys, targets, layers);
  Exceptions ranks(keys, file, "rank_pattern");
  Exceptions alphas(keys, file, "alpha_pattern");
  for (const LinearDeclaration& layer : layers) {
    const bool whole = std::ranges::find(targets.names(), layer.name) != targets.names().end();
    if (!targets.contains(layer.name) || excluded.contains(layer.name) ||
        (!whole && !numbers.contains(layer.name))) {
      continue;
    }
    AdapterShape shape = set.usual;
    if (const auto rank = ranks.of(layer.name)) {
      if (*rank != std::floor(*rank) || *rank > kMaxRank) {
        keys.refuse("rank_pattern", fmt::format("ranks are whole numbers up to {}", kMaxRank));
      }
      shape.rank = static_cast<int64_t>(*rank);
    }
    shape.alpha = alphas.of(layer.name).value_or(shape.alpha);
    set.layers.emplace(layer.name, shape);
  }
  if (set.layers.empty()) {
    throw UserError(
        "{}: target_modules and what restricts it choose no linear layer of the model; it has {}",
        file,
        last_parts(layers));
  }
  ranks.check_all_used();
  alphas.check_all_used();
  return set;
}

PeftFolder::PeftFolder(fs::path path, std::span<const LinearDeclaration> layers)
    : path_(std::move(path)) {
  const fs::path config = path_ / kPeftConfigName;
  std::error_code error;
  if (!fs::exists(config, error)) {
    throw UserError(
        "{} is no adapter's folder: it has no {}; give the folder that PEFT or a run with lora "
        "wrote",
        path_.string(),
        kPeftConfigName);
  }
  if (!fs::exists(path_ / kTensorsName, error)) {
    throw UserError(
        "{} has no {}; save the adapter with PEFT's save_pretrained(safe_serialization=True)",
        path_.string(),
        kTensorsName);
  }
  adapters_ = parse_peft_config(read_file(config), config.string(), layers);
  file_.emplace(path_ / kTensorsName);
  compare_with(adapter_tensors(adapters_, layers));
}

void PeftFolder::compare_with(std::span<const TensorDeclaration> expected) const {
  std::vector<std::string> faults;
  std::set<std::string> names;
  for (const TensorDeclaration& tensor : expected) {
    const std::string stored_name = fmt::format("{}{}", kPrefix, tensor.name);
    names.insert(stored_name);
    const StoredTensor* stored = file_->find(stored_name);
    if (stored == nullptr) {
      faults.push_back(fmt::format("missing: {}", stored_name));
    } else if (stored->shape != tensor.shape) {
      faults.push_back(fmt::format(
          "wrong shape: {} is {}, the model and {} ask for {}",
          stored_name,
          format_shape(stored->shape),
          kPeftConfigName,
          format_shape(tensor.shape)));
    } else if (
        stored->dtype != StoredDtype::F32 && stored->dtype != StoredDtype::F16 &&
        stored->dtype != StoredDtype::BF16) {
      faults.push_back(fmt::format(
          "wrong type: {} is {}, not F32, F16 or BF16", stored_name, name_of(stored->dtype)));
    }
  }
  for (const StoredTensor& tensor : file_->tensors()) {
    if (!names.contains(tensor.name)) {
      faults.push_back(fmt::format("unexpected: {}", quote(tensor.name)));
    }
  }
  if (faults.empty()) {
    return;
  }
  constexpr size_t kShown = 20;
  const size_t count = faults.size();
  faults.resize(std::min(count, kShown));
  throw UserError(
      "{}: the adapter does not fit the model ({} faults)\n{}{}",
      file_->path().string(),
      count,
      fmt::join(faults, "\n"),
      count > kShown ? "\n..." : "");
}

const StoredTensor& PeftFolder::at(std::string_view parameter) const {
  return file_->at(fmt::format("{}{}", kPrefix, parameter));
}

std::span<const std::byte> PeftFolder::bytes(std::string_view parameter) const {
  return file_->bytes(at(parameter));
}

std::string write_peft_config(
    const AdapterSet& set,
    std::span<const LinearDeclaration> layers,
    const PeftModel& model) {
  nlohmann::json ranks = nlohmann::json::object();
  nlohmann::json alphas = nlohmann::json::object();
  for (const auto& [name, shape] : set.layers) {
    if (shape.rank != set.usual.rank) {
      ranks[name] = shape.rank;
    }
    if (shape.alpha != set.usual.alpha) {
      alphas[name] = plain_number(shape.alpha);
    }
  }
  const nlohmann::json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path",
       model.base_model.empty() ? nlohmann::json(nullptr) : nlohmann::json(model.base_model)},
      {"r", set.usual.rank},
      {"lora_alpha", plain_number(set.usual.alpha)},
      {"lora_dropout", set.dropout},
      {"use_rslora", set.rslora},
      {"use_dora", false},
      {"bias", "none"},
      {"fan_in_fan_out", model.weights_in_out},
      {"target_modules", target_names(set, layers)},
      {"rank_pattern", ranks},
      {"alpha_pattern", alphas},
      {"modules_to_save", nullptr},
      {"init_lora_weights", true},
      {"inference_mode", true}};
  return config.dump(2) + "\n";
}

HfFolderLayout peft_layout(
    const AdapterSet& set,
    std::span<const LinearDeclaration> layers,
    const PeftModel& model) {
  HfFolderLayout layout;
  layout.config_name = kPeftConfigName;
  layout.config_text = write_peft_config(set, layers, model);
  HfFileLayout file{.name = std::string(kTensorsName), .tensors = adapter_tensors(set, layers)};
  for (TensorDeclaration& tensor : file.tensors) {
    tensor.name = fmt::format("{}{}", kPrefix, tensor.name);
  }
  layout.files = {std::move(file)};
  return layout;
}

std::string peft_parameter(std::string_view stored) {
  check(stored.starts_with(kPrefix), "{} is no tensor of an adapter", stored);
  return std::string(stored.substr(kPrefix.size()));
}

} // namespace palimpsest
