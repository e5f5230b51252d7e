#include <palimpsest/core/io/rope_config.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/json.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

namespace palimpsest {
namespace {

constexpr int64_t kMaxPositions = int64_t{1} << 31;

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

} // namespace

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

void check_rope(const RopeConfig& rope, int64_t head_dim, const std::string& origin) {
  const auto refuse = [&](const std::string& problem) {
    throw UserError("{}: {} rotary embedding: {}", origin, name_of(rope.type), problem);
  };
  if (!(rope.theta > 1.0) || !std::isfinite(rope.theta)) {
    refuse(fmt::format("rope_theta is {}, but must be above 1", rope.theta));
  }
  if (!(rope.factor >= 1.0) || !std::isfinite(rope.factor)) {
    refuse(fmt::format("factor is {}, but must be at least 1", rope.factor));
  }
  if (rope.type == RopeType::kDynamic && head_dim < 4) {
    refuse(fmt::format("head_dim is {}, but must be at least 4", head_dim));
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

} // namespace palimpsest
