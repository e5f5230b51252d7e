#include <palimpsest/core/io/decoder_config.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/config_reader.h>
#include <palimpsest/core/io/json.h>
#include <palimpsest/core/io/rope_config.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
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

const DecoderFamily& parse_family(const ConfigReader& keys) {
  const DecoderFamily* family = find_decoder_family(keys.string("model_type").value_or(""));
  if (family == nullptr) {
    std::string names;
    for (const DecoderFamily& known : decoder_families()) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
    }
    keys.refuse("model_type", fmt::format("supported are {}", names));
  }
  const nlohmann::json* architectures = keys.find("architectures");
  if (architectures != nullptr && *architectures != nlohmann::json::array({family->architecture})) {
    const bool named = architectures->is_array() && architectures->size() == 1 &&
        architectures->front().is_string();
    keys.refuse(
        "architectures",
        fmt::format(
            "{}of model_type {} only {} is supported",
            named ? fmt::format("names {}; ", quote(architectures->front().get<std::string>()))
                  : "",
            family->name,
            family->architecture));
  }
  return *family;
}

/// Settings that would change numbers in ways that this program does not compute.
void refuse_unsupported(const ConfigReader& keys) {
  if (keys.optional_integer("pretraining_tp", 1, kMaxHeads).value_or(1) != 1) {
    keys.refuse("pretraining_tp", "only 1 is supported");
  }
  if (keys.number("partial_rotary_factor", 0.0, 1.0).value_or(1.0) != 1.0) {
    keys.refuse("partial_rotary_factor", "only 1 is supported");
  }
  if (!keys.boolean("scale_attn_weights").value_or(true)) {
    keys.refuse("scale_attn_weights", "only true is supported");
  }
  for (const char* key :
       {"add_cross_attention",
        "is_encoder_decoder",
        "scale_attn_by_inverse_layer_idx",
        "use_bidirectional_attention"}) {
    if (keys.boolean(key).value_or(false)) {
      keys.refuse(key, "only false is supported");
    }
  }
  for (const char* key :
       {"attn_logit_softcapping",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
        "num_experts",
        "num_local_experts"}) {
    if (keys.has(key)) {
      keys.refuse(key, "no supported family has it; remove it, or train another model");
    }
  }
  if (keys.has("quantization_config")) {
    keys.refuse("quantization_config", "quantized weights are not supported");
  }
}

/// Whether there are biases that the family has never, always or where `key` is set.
bool parse_bias(const ConfigReader& keys, const char* key, Presence presence) {
  const std::optional<bool> given = keys.boolean(key);
  if (presence != Presence::kByConfig && given && *given != (presence == Presence::kAlways)) {
    keys.refuse(
        key, presence == Presence::kAlways ? "this family has them" : "this family has none");
  }
  return presence == Presence::kAlways ||
      (presence == Presence::kByConfig && given.value_or(false));
}

bool parse_attention_bias(const ConfigReader& keys, Presence presence, Presence other) {
  // One key for q, k, v and o: where the family settles only some of them, it says nothing.
  return presence == other ? parse_bias(keys, "attention_bias", presence)
                           : presence == Presence::kAlways;
}

/// Some layers by name; refused where it is not one name a layer.
std::vector<std::string> parse_layer_types(const ConfigReader& keys, int64_t layers) {
  const nlohmann::json* types = keys.find("layer_types");
  if (types == nullptr) {
    return {};
  }
  if (!types->is_array() || std::cmp_not_equal(types->size(), layers)) {
    keys.refuse("layer_types", fmt::format("must be a list of {} names, one a layer", layers));
  }
  std::vector<std::string> names;
  for (const nlohmann::json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      keys.refuse("layer_types", "supported are full_attention and sliding_attention");
    }
    names.push_back(type.get<std::string>());
  }
  return names;
}

std::vector<int64_t> parse_windows(
    const ConfigReader& keys,
    const DecoderFamily& family,
    int64_t layers,
    int64_t max_positions) {
  const auto given = keys.optional_integer("sliding_window", 1, kMaxPositions);
  const auto used = keys.boolean("use_sliding_window");
  int64_t window = given.value_or(keys.is_null("sliding_window") ? 0 : family.sliding_window);
  int64_t first = 0;
  if (family.windows == WindowRule::kByLayer) {
    window = used.value_or(false) ? window : 0;
    first = keys.optional_integer("max_window_layers", 0, kMaxLayers).value_or(28);
  }
  if (family.windows == WindowRule::kNone) {
    if (used.value_or(true) && window != 0 && window < max_positions) {
      keys.refuse("sliding_window", fmt::format("{} has no sliding windows", family.name));
    }
    window = 0;
  }
  const std::vector<int64_t> windows = layer_windows(layers, window, first);
  const std::vector<std::string> types = parse_layer_types(keys, layers);
  if (types.empty()) {
    return windows;
  }
  std::vector<int64_t> typed;
  for (const std::string& type : types) {
    typed.push_back(type == "full_attention" ? 0 : window);
  }
  const bool slides = std::ranges::count(types, "sliding_attention") > 0;
  if (slides && window == 0) {
    keys.refuse("layer_types", "sliding_attention needs a sliding_window that is in use");
  }
  if (family.windows == WindowRule::kEveryLayer && !windows.empty() && typed != windows) {
    keys.refuse("layer_types", "all layers of this family follow sliding_window");
  }
  return slides ? typed : std::vector<int64_t>();
}

HiddenAct parse_activation(const ConfigReader& keys, const DecoderFamily& family) {
  const auto named = [&](const std::string& key) {
    const auto name = keys.string(key);
    return name ? std::optional(look_up(kActs, keys, key, *name)) : std::nullopt;
  };
  HiddenAct act = named(family.spelled("hidden_act")).value_or(family.hidden_act);
  if (family.name == "gemma") {
    // As transformers reads it: the first official configs said gelu and meant its tanh form.
    act = act == HiddenAct::kGelu ? HiddenAct::kGeluTanh : act;
    if (named("hidden_activation").value_or(act) != act) {
      keys.refuse("hidden_activation", "hidden_act says something else");
    }
  }
  return act;
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

void check_share(const std::string& origin, std::string_view key, double value) {
  if (!(value >= 0.0 && value < 1.0)) {
    throw UserError("{}: {} is {}, but must be at least 0 and below 1", origin, key, value);
  }
}

void check_heads(const DecoderConfig& config, const std::string& origin) {
  if (config.num_key_value_heads < 1 ||
      config.num_attention_heads % config.num_key_value_heads != 0) {
    throw UserError(
        "{}: num_attention_heads is {}, but must be a multiple of num_key_value_heads ({})",
        origin,
        config.num_attention_heads,
        config.num_key_value_heads);
  }
  check_range(origin, "head_dim", config.head_dim, 1, kMaxHeads);
  if (config.family->rotary && config.head_dim % 2 != 0) {
    throw UserError(
        "{}: head_dim is {}, but rotary embedding needs an even one", origin, config.head_dim);
  }
}

void check_windows(const DecoderConfig& config, const std::string& origin) {
  if (config.windows.empty()) {
    return;
  }
  if (config.family->windows == WindowRule::kNone) {
    throw UserError("{}: {} has no sliding windows", origin, config.family->name);
  }
  check(
      std::cmp_equal(config.windows.size(), config.num_hidden_layers),
      "{} windows for {} layers",
      config.windows.size(),
      config.num_hidden_layers);
  for (const int64_t window : config.windows) {
    check_range(origin, "sliding_window", window, 0, kMaxPositions);
  }
}

/// What every family's config.json says, in LLaMA's spelling.
nlohmann::json common_keys(const DecoderConfig& config) {
  // Null token ids: absent ones would become transformers' defaults.
  return {
      {"architectures", {config.family->architecture}},
      {"attention_dropout", config.attention_dropout},
      {"bos_token_id", nullptr},
      {"dtype", first_name(kDtypes, config.dtype)},
      {"eos_token_id", nullptr},
      {"hidden_act", name_of(config.hidden_act)},
      {"hidden_size", config.hidden_size},
      {"initializer_range", config.initializer_range},
      {"intermediate_size", config.intermediate_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"model_type", config.family->name},
      {"num_attention_heads", config.num_attention_heads},
      {"num_hidden_layers", config.num_hidden_layers},
      {"pad_token_id", nullptr},
      {"rms_norm_eps", config.norm_eps},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"use_cache", true},
      {"vocab_size", config.vocab_size},
  };
}

void add_windows(nlohmann::json& json, const DecoderConfig& config) {
  const int64_t widest = config.windows.empty() ? 0 : *std::ranges::max_element(config.windows);
  if (config.family->windows != WindowRule::kNone) {
    json["sliding_window"] = widest == 0 ? nlohmann::json() : nlohmann::json(widest);
  }
  if (config.family->windows == WindowRule::kByLayer) {
    json["use_sliding_window"] = widest > 0;
    json["layer_types"] = nlohmann::json::array();
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      json["layer_types"].push_back(
          config.window(layer) > 0 ? "sliding_attention" : "full_attention");
    }
  }
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
  const DecoderFamily& family = parse_family(keys);
  const auto key = [&](std::string_view name) { return family.spelled(name); };
  DecoderConfig config;
  config.family = &family;
  config.vocab_size = keys.integer("vocab_size", 1, kMaxVocabulary);
  config.hidden_size = keys.integer(key("hidden_size"), 1, kMaxHidden);
  config.intermediate_size = family.gated
      ? keys.integer(key("intermediate_size"), 1, kMaxIntermediate)
      : keys.optional_integer(key("intermediate_size"), 1, kMaxIntermediate)
            .value_or(4 * config.hidden_size);
  config.num_hidden_layers = keys.integer(key("num_hidden_layers"), 1, kMaxLayers);
  config.num_attention_heads = keys.integer(key("num_attention_heads"), 1, kMaxHeads);
  if (family.rotary) {
    config.num_key_value_heads =
        keys.optional_integer("num_key_value_heads", 1, kMaxHeads).value_or(0);
    config.head_dim = keys.optional_integer("head_dim", 1, kMaxHeads)
                          .value_or(keys.is_null("head_dim") ? 0 : family.head_dim);
    config.rope = parse_rope(keys, file);
  } else {
    config.residual_dropout = keys.number("resid_pdrop", 0.0, 1.0).value_or(family.dropout);
    config.embedding_dropout = keys.number("embd_pdrop", 0.0, 1.0).value_or(family.dropout);
  }
  config.max_position_embeddings =
      keys.optional_integer(key("max_position_embeddings"), 1, kMaxPositions)
          .value_or(family.max_position_embeddings);
  config.norm_eps = keys.number(key("rms_norm_eps"), 0.0, 1.0).value_or(family.norm_eps);
  config.tie_word_embeddings =
      keys.boolean("tie_word_embeddings").value_or(family.tie_word_embeddings);
  config.qkv_bias = parse_attention_bias(keys, family.qkv_bias, family.output_bias);
  config.output_bias = parse_attention_bias(keys, family.output_bias, family.qkv_bias);
  config.mlp_bias = parse_bias(keys, "mlp_bias", family.mlp_bias);
  config.attention_dropout =
      keys.number(key("attention_dropout"), 0.0, 1.0).value_or(family.dropout);
  config.hidden_act = parse_activation(keys, family);
  config.initializer_range =
      keys.number("initializer_range", 0.0, 10.0).value_or(config.initializer_range);
  config.dtype = parse_dtype(keys);
  config.windows =
      parse_windows(keys, family, config.num_hidden_layers, config.max_position_embeddings);
  refuse_unsupported(keys);
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
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0) {
      throw UserError(
          "{}: hidden_size is {}, but must be a multiple of num_attention_heads ({})",
          origin,
          config.hidden_size,
          config.num_attention_heads);
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  check_heads(config, origin);
  if (!(config.norm_eps > 0.0 && config.norm_eps <= 1.0)) {
    throw UserError(
        "{}: {} is {}, but must be above 0 and at most 1",
        origin,
        config.family->spelled("rms_norm_eps"),
        config.norm_eps);
  }
  check_share(origin, config.family->spelled("attention_dropout"), config.attention_dropout);
  check_share(origin, "resid_pdrop", config.residual_dropout);
  check_share(origin, "embd_pdrop", config.embedding_dropout);
  if (!(config.initializer_range >= 0.0 && config.initializer_range <= 10.0)) {
    throw UserError(
        "{}: initializer_range is {}, but must be from 0 to 10", origin, config.initializer_range);
  }
  if (config.family->rotary) {
    check_rope(config.rope, config.head_dim, origin);
  }
  check_windows(config, origin);
  return config;
}

std::vector<int64_t> layer_windows(int64_t layers, int64_t window, int64_t first) {
  if (window == 0 || first >= layers) {
    return {};
  }
  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  std::fill(windows.begin() + first, windows.end(), window);
  return windows;
}

std::string write_decoder_config(const DecoderConfig& config) {
  const DecoderFamily& family = *config.family;
  nlohmann::json json = nlohmann::json::object();
  const nlohmann::json common = common_keys(config);
  for (const auto& [key, value] : common.items()) {
    json[family.spelled(key)] = value;
  }
  if (family.rotary) {
    json["head_dim"] = config.head_dim;
    json["num_key_value_heads"] = config.num_key_value_heads;
    json["rope_scaling"] = encode_rope(config.rope);
    json["rope_theta"] = config.rope.theta;
  } else {
    json["resid_pdrop"] = config.residual_dropout;
    json["embd_pdrop"] = config.embedding_dropout;
  }
  if (family.qkv_bias == Presence::kByConfig) {
    json["attention_bias"] = config.qkv_bias;
  }
  if (family.mlp_bias == Presence::kByConfig) {
    json["mlp_bias"] = config.mlp_bias;
  }
  add_windows(json, config);
  return json.dump(2) + "\n";
}

} // namespace palimpsest
