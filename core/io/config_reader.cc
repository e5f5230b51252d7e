#include <palimpsest/core/io/config_reader.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/json.h>

#include <utility>

namespace palimpsest {
namespace {

/// What a value is, short enough for a message.
std::string describe(const nlohmann::json& value) {
  if (value.is_structured()) {
    return value.is_array() ? "a list" : "an object";
  }
  return value.is_string() ? quote(value.get_ref<const std::string&>()) : value.dump();
}

} // namespace

ConfigReader::ConfigReader(const nlohmann::json& json, std::string file, std::string prefix)
    : json_(json), file_(std::move(file)), prefix_(std::move(prefix)) {
  if (!json_.is_object()) {
    const std::string what = prefix_.empty() ? "the file" : prefix_.substr(0, prefix_.size() - 1);
    throw UserError("{}: {} must be an object, not {}", file_, what, describe(json_));
  }
}

const nlohmann::json* ConfigReader::find(const std::string& key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::has(const std::string& key) const {
  return find(key) != nullptr;
}

bool ConfigReader::is_null(const std::string& key) const {
  const auto found = json_.find(key);
  return found != json_.end() && found->is_null();
}

void ConfigReader::refuse(const std::string& key, const std::string& rule) const {
  const nlohmann::json* value = find(key);
  throw UserError(
      "{}: {}{} is {}, but {}",
      file_,
      prefix_,
      key,
      value == nullptr ? "missing" : describe(*value),
      rule);
}

std::optional<int64_t> ConfigReader::optional_integer(
    const std::string& key,
    int64_t low,
    int64_t high) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::string rule = fmt::format("it must be an integer from {} to {}", low, high);
  const bool too_large = value->is_number_unsigned() &&
      value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!value->is_number_integer() || too_large) {
    refuse(key, rule);
  }
  const auto number = value->get<int64_t>();
  if (number < low || number > high) {
    refuse(key, rule);
  }
  return number;
}

int64_t ConfigReader::integer(const std::string& key, int64_t low, int64_t high) const {
  const std::optional<int64_t> value = optional_integer(key, low, high);
  if (!value) {
    refuse(key, fmt::format("it is required: an integer from {} to {}", low, high));
  }
  return *value;
}

std::optional<double> ConfigReader::number(const std::string& key, double low, double high) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::string rule = fmt::format("it must be a number from {} to {}", low, high);
  if (!value->is_number()) {
    refuse(key, rule);
  }
  const auto number = value->get<double>();
  if (!(number >= low && number <= high)) {
    refuse(key, rule);
  }
  return number;
}

std::optional<bool> ConfigReader::boolean(const std::string& key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_boolean()) {
    refuse(key, "it must be true or false");
  }
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::string(const std::string& key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    refuse(key, "it must be a string");
  }
  return value->get<std::string>();
}

} // namespace palimpsest
