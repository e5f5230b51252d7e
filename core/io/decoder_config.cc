#include <palimpsest/core/io/decoder_config.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/config_reader.h>
#include <palimpsest/core/io/json.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

namespace palimpsest {
namespace {

// Above any published model, and low enough that no product of them leaves int64.
constexpr int64_t kMaxVocabulary = int64_t{1} << 27;
constexpr int64_t kMaxHidden = int64_t{1} << 20;
constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kMaxHeads = int64_t{1} << 16;
constexpr int64_t kMaxPositions = int64_t{1} << 31;

constexpr std::string_view kModelType = "llama";
constexpr std::string_view kArchitecture = "LlamaForCausalLM";

constexpr std::array<std::pair<std::string_view, HiddenAct>, 6> kActs = {{
    {"silu", HiddenAct::kSilu},
    {"gelu", HiddenAct::kGelu},
    {"gelu_pytorch_tanh", HiddenAct::kGeluTanh},
    {"relu", HiddenAct::kRelu},
    {"swish", HiddenAct::kSilu},
    {"gelu_new", HiddenAct::kGeluTanh},
}};

constexpr std::array<std::pair<std::string_view, StoredDtype>, 3> kDtypes = {{
    {"float32", StoredDtype::F32},
    {"float16", StoredDtype::F16},
    {"bfloat16", StoredDtype::BF16},
}};

/// The names of a table, for messages.
template <typename Table>
std::string names_of(const Table& table) {
  std::string names;
  for (const auto& entry : table) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.first);
  }
  return names;
}

/// The value under `name`; refuses a name that the table lacks.
template <typename Table>
auto look_up(
    const Table& table,
    const ConfigReader& keys,
    const std::string& key,
    std::string name) {
  const auto found = std::find_if(
      table.begin(), table.end(), [&](const auto& entry) { return entry.first == name; });
  if (found == table.end()) {
    keys.refuse(key, fmt::format("supported are {}", names_of(table)));
  }
  return found->second;
}

template <typename Table, typename Value>
std::string_view first_name(const Table& table, Value value) {
  const auto found = std::find_if(
      table.begin(), table.end(), [&](const auto& entry) { return entry.second == value; });
  check(found != table.end(), "a value without a name");
  return found->first;
}

void check_architecture(const ConfigReader& keys) {
  const std::string supported =
      fmt::format("supported is {} (model_type {})", kArchitecture, kModelType);
  if (keys.string("model_type") != kModelType) {
    keys.refuse("model_type", supported);
  }
  const nlohmann::json* architectures = keys.find("architectures");
  if (architectures != nullptr && *architectures != nlohmann::json::array({kArchitecture})) {
    const bool named = architectures->is_array() && architectures->size() == 1 &&
        architectures->front().is_string();
    keys.refuse(
        "architectures",
        (named ? fmt::format("names {}; ", quote(architectures->front().get<std::string>())) : "") +
            supported);
  }
}

/// Settings that would change numbers in ways that this program does not compute.
void refuse_unsupported(const ConfigReader& keys, int64_t max_positions) {
  if (keys.optional_integer("pretraining_tp", 1, kMaxHeads).value_or(1) != 1) {
    keys.refuse("pretraining_tp", "only 1 is supported");
  }
  const bool uses_window = keys.boolean("use_sliding_window").value_or(true);
  const auto window = keys.optional_integer("sliding_window", 1, kMaxPositions);
  if (uses_window && window && *window < max_positions) {
    keys.refuse("sliding_window", "attention within a sliding window is not supported");
  }
  const nlohmann::json* layer_types = keys.find("layer_types");
  if (layer_types != nullptr) {
    for (const nlohmann::json& type : *layer_types) {
      if (type != "full_attention") {
        keys.refuse("layer_types", "only full_attention is supported");
      }
    }
  }
  if (keys.number("partial_rotary_factor", 0.0, 1.0).value_or(1.0) != 1.0) {
    keys.refuse("partial_rotary_factor", "only 1 is supported");
  }
  if (keys.has("quantization_config")) {
    keys.refuse("quantization_config", "quantized weights are not supported");
  }
}

/// Keys of a rope section that its type uses; "type" and "rope_theta" go with every type.
std::set<std::string> rope_keys(RopeType type) {
  std::set<std::string> keys = {"type", "rope_type", "rope_theta", "partial_rotary_factor"};
  if (type != RopeType::kDefault) {
    // transformers ignores the original length for linear and dynamic, but writes it.
    keys.insert({"factor", "original_max_position_embeddings"});
  }
  if (type == RopeType::kLlama3) {
    keys.insert({"low_freq_factor", "high_freq_factor"});
  }
  if (type == RopeType::kYarn) {
    keys.insert(
        {"attention_factor",
         "beta_fast",
         "beta_slow",
         "mscale",
         "mscale_all_dim",
         "truncate",
         "finetuned"}); // the last one is a note of published configs
  }
  return keys;
}

RopeType parse_type(const ConfigReader& keys, bool has_settings) {
  const std::optional<std::string> type = keys.string("type");
  const std::optional<std::string> rope_type = keys.string("rope_type");
  if (type && rope_type && *type != *rope_type) {
    keys.refuse("type", fmt::format("rope_type is {}", quote(*rope_type)));
  }
  if (!type && !rope_type) {
    if (has_settings) {
      keys.refuse("rope_type", "the section has settings that need it");
    }
    return RopeType::kDefault;
  }
  const std::optional<RopeType> known = parse_rope_type(rope_type ? *rope_type : *type);
  if (!known) {
    keys.refuse(
        rope_type ? "rope_type" : "type", "supported are default, linear, dynamic, yarn, llama3");
  }
  return *known;
}

/// Rotary settings that need a number from the file; the rest keeps its defaults.
RopeConfig parse_rope_numbers(const ConfigReader& keys, RopeType type) {
  constexpr double kMax = 1e9;
  RopeConfig rope;
  rope.type = type;
  const auto required = [&](const std::string& key, double low) {
    const std::optional<double> value = keys.number(key, low, kMax);
    if (!value) {
      keys.refuse(key, fmt::format("rope type {} needs it", name_of(type)));
    }
    return *value;
  };
  if (type != RopeType::kDefault) {
    rope.factor = required("factor", 1.0);
    rope.original_max_position_embeddings =
        keys.optional_integer("original_max_position_embeddings", 1, kMaxPositions);
  }
  if (type == RopeType::kLlama3) {
    rope.low_freq_factor = required("low_freq_factor", 0.0);
    rope.high_freq_factor = required("high_freq_factor", 0.0);
  }
  if (type == RopeType::kYarn) {
    rope.attention_factor = keys.number("attention_factor", 0.0, kMax);
    rope.beta_fast = keys.number("beta_fast", 0.0, kMax).value_or(rope.beta_fast);
    rope.beta_slow = keys.number("beta_slow", 0.0, kMax).value_or(rope.beta_slow);
    rope.mscale = keys.number("mscale", 0.0, kMax);
    rope.mscale_all_dim = keys.number("mscale_all_dim", 0.0, kMax);
    rope.truncate = keys.boolean("truncate").value_or(true);
  }
  return rope;
}

/// One of the two sections, which name the same things.
RopeConfig parse_rope_section(
    const nlohmann::json& json,
    const std::string& file,
    const std::string& name) {
  const ConfigReader keys(json, file, name + ".");
  const bool has_settings =
      std::any_of(json.items().begin(), json.items().end(), [](const auto& item) {
        return item.key() != "rope_theta" && !item.value().is_null();
      });
  const RopeType type = parse_type(keys, has_settings);
  const std::set<std::string> known = rope_keys(type);
  for (const auto& [key, value] : json.items()) {
    if (!value.is_null() && !known.contains(key)) {
      keys.refuse(key, fmt::format("rope type {} has no such setting; remove it", name_of(type)));
    }
  }
  if (keys.number("partial_rotary_factor", 0.0, 1.0).value_or(1.0) != 1.0) {
    keys.refuse("partial_rotary_factor", "only 1 is supported");
  }
  return parse_rope_numbers(keys, type);
}

/// rope_theta and rope_scaling (transformers 4) or rope_parameters (5), or both where they agree.
RopeConfig parse_rope(const ConfigReader& keys, const std::string& file) {
  constexpr double kMaxTheta = 1e18;
  std::optional<double> theta = keys.number("rope_theta", 0.0, kMaxTheta);
  std::optional<RopeConfig> rope;
  for (const std::string name : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* section = keys.find(name);
    if (section == nullptr) {
      continue;
    }
    const RopeConfig parsed = parse_rope_section(*section, file, name);
    if (rope && *rope != parsed) {
      keys.refuse(name, "rope_scaling says something else; remove one of the two");
    }
    rope = parsed;
    const auto own = ConfigReader(*section, file, name + ".").number("rope_theta", 0.0, kMaxTheta);
    if (theta && own && *theta != *own) {
      keys.refuse("rope_theta", fmt::format("{}.rope_theta is {}", name, *own));
    }
    theta = own ? own : theta;
  }
  RopeConfig result = rope.value_or(RopeConfig{});
  result.theta = theta.value_or(result.theta);
  const auto original = keys.optional_integer("original_max_position_embeddings", 1, kMaxPositions);
  if (original && original != result.original_max_position_embeddings &&
      result.type != RopeType::kDefault) {
    keys.refuse("original_max_position_embeddings", "the rope section does not say the same");
  }
  return result;
}

StoredDtype parse_dtype(const ConfigReader& keys) {
  std::optional<StoredDtype> dtype;
  for (const std::string key : {"torch_dtype", "dtype"}) {
    std::optional<std::string> name = keys.string(key);
    if (!name) {
      continue;
    }
    if (name->starts_with("torch.")) {
      name->erase(0, std::string_view("torch.").size());
    }
    const StoredDtype parsed = look_up(kDtypes, keys, key, *name);
    if (dtype && *dtype != parsed) {
      keys.refuse(key, "torch_dtype says something else");
    }
    dtype = parsed;
  }
  return dtype.value_or(StoredDtype::F32);
}

void check_range(
    const std::string& origin,
    std::string_view key,
    int64_t value,
    int64_t low,
    int64_t high) {
  if (value < low || value > high) {
    throw UserError(
        "{}: {} is {}, but it must be an integer from {} to {}", origin, key, value, low, high);
  }
}

void check_rope(const RopeConfig& rope, const DecoderConfig& config, const std::string& origin) {
  const auto refuse = [&](const std::string& problem) {
    throw UserError("{}: {} rotary embedding: {}", origin, name_of(rope.type), problem);
  };
  if (!(rope.theta > 1.0) || !std::isfinite(rope.theta)) {
    refuse(fmt::format("rope_theta is {}, but must be above 1", rope.theta));
  }
  if (!(rope.factor >= 1.0) || !std::isfinite(rope.factor)) {
    refuse(fmt::format("factor is {}, but must be at least 1", rope.factor));
  }
  if (rope.type == RopeType::kDynamic && config.head_dim < 4) {
    refuse(fmt::format("head_dim is {}, but must be at least 4", config.head_dim));
  }
  if (rope.type == RopeType::kLlama3) {
    if (!rope.original_max_position_embeddings) {
      refuse("original_max_position_embeddings is missing");
    }
    if (!(rope.low_freq_factor > 0.0 && rope.low_freq_factor < rope.high_freq_factor)) {
      refuse(fmt::format(
          "low_freq_factor is {} and high_freq_factor {}, but 0 < low < high must hold",
          rope.low_freq_factor,
          rope.high_freq_factor));
    }
  }
  if (rope.type == RopeType::kYarn && !(rope.beta_slow > 0.0 && rope.beta_slow <= rope.beta_fast)) {
    refuse(fmt::format(
        "beta_slow is {} and beta_fast {}, but 0 < slow <= fast must hold",
        rope.beta_slow,
        rope.beta_fast));
  }
}

/// The section as transformers 4 spells it; null for the default type.
nlohmann::json encode_rope(const RopeConfig& rope) {
  if (rope.type == RopeType::kDefault) {
    return nullptr;
  }
  nlohmann::json section = {{"rope_type", name_of(rope.type)}, {"factor", rope.factor}};
  if (rope.original_max_position_embeddings) {
    section["original_max_position_embeddings"] = *rope.original_max_position_embeddings;
  }
  if (rope.type == RopeType::kLlama3) {
    section["low_freq_factor"] = rope.low_freq_factor;
    section["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == RopeType::kYarn) {
    section["beta_fast"] = rope.beta_fast;
    section["beta_slow"] = rope.beta_slow;
    section["truncate"] = rope.truncate;
    const auto add = [&](const char* key, const std::optional<double>& value) {
      if (value) {
        section[key] = *value;
      }
    };
    add("attention_factor", rope.attention_factor);
    add("mscale", rope.mscale);
    add("mscale_all_dim", rope.mscale_all_dim);
  }
  return section;
}

} // namespace

std::string_view name_of(HiddenAct act) {
  return first_name(kActs, act);
}

std::optional<HiddenAct> parse_hidden_act(std::string_view name) {
  const auto found = std::ranges::find(kActs, name, [](const auto& entry) { return entry.first; });
  return found == kActs.end() ? std::nullopt : std::optional(found->second);
}

DecoderConfig parse_decoder_config(std::string_view json, const std::string& file) {
  const nlohmann::json root = parse_json(json, file);
  const ConfigReader keys(root, file);
  check_architecture(keys);
  DecoderConfig config;
  config.vocab_size = keys.integer("vocab_size", 1, kMaxVocabulary);
  config.hidden_size = keys.integer("hidden_size", 1, kMaxHidden);
  config.intermediate_size = keys.integer("intermediate_size", 1, kMaxIntermediate);
  config.num_hidden_layers = keys.integer("num_hidden_layers", 1, kMaxLayers);
  config.num_attention_heads = keys.integer("num_attention_heads", 1, kMaxHeads);
  config.num_key_value_heads =
      keys.optional_integer("num_key_value_heads", 1, kMaxHeads).value_or(0);
  config.head_dim = keys.optional_integer("head_dim", 1, kMaxHeads).value_or(0);
  config.max_position_embeddings =
      keys.optional_integer("max_position_embeddings", 1, kMaxPositions)
          .value_or(config.max_position_embeddings);
  config.rms_norm_eps = keys.number("rms_norm_eps", 0.0, 1.0).value_or(config.rms_norm_eps);
  config.tie_word_embeddings = keys.boolean("tie_word_embeddings").value_or(false);
  config.attention_bias = keys.boolean("attention_bias").value_or(false);
  config.mlp_bias = keys.boolean("mlp_bias").value_or(false);
  config.attention_dropout = keys.number("attention_dropout", 0.0, 1.0).value_or(0.0);
  config.hidden_act =
      look_up(kActs, keys, "hidden_act", keys.string("hidden_act").value_or("silu"));
  config.initializer_range =
      keys.number("initializer_range", 0.0, 10.0).value_or(config.initializer_range);
  config.dtype = parse_dtype(keys);
  config.rope = parse_rope(keys, file);
  refuse_unsupported(keys, config.max_position_embeddings);
  return complete_decoder_config(config, file);
}

DecoderConfig complete_decoder_config(DecoderConfig config, const std::string& origin) {
  check_range(origin, "vocab_size", config.vocab_size, 1, kMaxVocabulary);
  check_range(origin, "hidden_size", config.hidden_size, 1, kMaxHidden);
  check_range(origin, "intermediate_size", config.intermediate_size, 1, kMaxIntermediate);
  check_range(origin, "num_hidden_layers", config.num_hidden_layers, 1, kMaxLayers);
  check_range(origin, "num_attention_heads", config.num_attention_heads, 1, kMaxHeads);
  check_range(origin, "max_position_embeddings", config.max_position_embeddings, 1, kMaxPositions);
  if (config.num_key_value_heads == 0) {
    config.num_key_value_heads = config.num_attention_heads;
  }
  if (config.num_key_value_heads < 1 ||
      config.num_attention_heads % config.num_key_value_heads != 0) {
    throw UserError(
        "{}: num_attention_heads is {}, but must be a multiple of num_key_value_heads ({})",
        origin,
        config.num_attention_heads,
        config.num_key_value_heads);
  }
  if (config.hidden_size % config.num_attention_heads != 0) {
    throw UserError(
        "{}: hidden_size is {}, but must be a multiple of num_attention_heads ({})",
        origin,
        config.hidden_size,
        config.num_attention_heads);
  }
  if (config.head_dim == 0) {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  check_range(origin, "head_dim", config.head_dim, 1, kMaxHeads);
  if (config.head_dim % 2 != 0) {
    throw UserError(
        "{}: head_dim is {}, but rotary embedding needs an even one", origin, config.head_dim);
  }
  if (!(config.rms_norm_eps > 0.0 && config.rms_norm_eps <= 1.0)) {
    throw UserError(
        "{}: rms_norm_eps is {}, but must be above 0 and at most 1", origin, config.rms_norm_eps);
  }
  if (!(config.attention_dropout >= 0.0 && config.attention_dropout < 1.0)) {
    throw UserError(
        "{}: attention_dropout is {}, but must be at least 0 and below 1",
        origin,
        config.attention_dropout);
  }
  if (!(config.initializer_range >= 0.0 && config.initializer_range <= 10.0)) {
    throw UserError(
        "{}: initializer_range is {}, but must be from 0 to 10", origin, config.initializer_range);
  }
  check_rope(config.rope, config, origin);
  return config;
}

std::string write_decoder_config(const DecoderConfig& config) {
  // Null token ids: absent ones would become 1 and 2, transformers' defaults.
  const nlohmann::json json = {
      {"architectures", {kArchitecture}},
      {"attention_bias", config.attention_bias},
      {"attention_dropout", config.attention_dropout},
      {"bos_token_id", nullptr},
      {"dtype", first_name(kDtypes, config.dtype)},
      {"eos_token_id", nullptr},
      {"head_dim", config.head_dim},
      {"hidden_act", name_of(config.hidden_act)},
      {"hidden_size", config.hidden_size},
      {"initializer_range", config.initializer_range},
      {"intermediate_size", config.intermediate_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"mlp_bias", config.mlp_bias},
      {"model_type", kModelType},
      {"num_attention_heads", config.num_attention_heads},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_key_value_heads", config.num_key_value_heads},
      {"pad_token_id", nullptr},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_scaling", encode_rope(config.rope)},
      {"rope_theta", config.rope.theta},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"use_cache", true},
      {"vocab_size", config.vocab_size},
  };
  return json.dump(2) + "\n";
}

std::vector<TensorDeclaration> decoder_tensors(const DecoderConfig& config) {
  std::vector<TensorDeclaration> tensors;
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    tensors.push_back({std::move(name), config.dtype, std::move(shape)});
  };
  const auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) {
      add(name + ".bias", {out});
    }
  };
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t query = config.num_attention_heads * config.head_dim;
  const int64_t key = config.num_key_value_heads * config.head_dim;
  add("model.embed_tokens.weight", {config.vocab_size, hidden});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    add(prefix + "input_layernorm.weight", {hidden});
    add_linear(prefix + "self_attn.q_proj", query, hidden, config.attention_bias);
    add_linear(prefix + "self_attn.k_proj", key, hidden, config.attention_bias);
    add_linear(prefix + "self_attn.v_proj", key, hidden, config.attention_bias);
    add_linear(prefix + "self_attn.o_proj", hidden, query, config.attention_bias);
    add(prefix + "post_attention_layernorm.weight", {hidden});
    add_linear(prefix + "mlp.gate_proj", inner, hidden, config.mlp_bias);
    add_linear(prefix + "mlp.up_proj", inner, hidden, config.mlp_bias);
    add_linear(prefix + "mlp.down_proj", hidden, inner, config.mlp_bias);
  }
  add("model.norm.weight", {hidden});
  if (!config.tie_word_embeddings) {
    add("lm_head.weight", {config.vocab_size, hidden});
  }
  return tensors;
}

int64_t parameter_count(const DecoderConfig& config) {
  int64_t count = 0;
  for (const TensorDeclaration& tensor : decoder_tensors(config)) {
    count += tensor.elements();
  }
  return count;
}

} // namespace palimpsest
