#include <palimpsest/core/data/tokenizer/component.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/json.h>

namespace palimpsest {

namespace {

std::string shown(const nlohmann::json& value) {
  return value.is_string()    ? quote(value.get_ref<const std::string&>())
      : value.is_structured() ? std::string(value.type_name())
                              : value.dump();
}

} // namespace

std::string Component::where() const {
  return name_.empty() ? file_ : file_ + ": " + name_;
}

bool Component::has(const std::string& key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

std::string Component::type() const {
  return string("type");
}

Component Component::at(const std::string& key) const {
  if (!json_.is_object()) {
    throw UserError("{} is {}; give an object", where(), shown(json_));
  }
  if (!has(key)) {
    throw UserError("{} has no {}", where(), key);
  }
  return {json_.at(key), file_, name_.empty() ? key : name_ + "." + key};
}

std::string Component::string(const std::string& key) const {
  const Component value = at(key);
  if (!value.json_.is_string()) {
    refuse(key, "give a text");
  }
  return value.json_.get<std::string>();
}

int64_t Component::integer(const std::string& key) const {
  const Component value = at(key);
  if (!value.json_.is_number_integer()) {
    refuse(key, "give a whole number");
  }
  return value.json_.get<int64_t>();
}

bool Component::boolean(const std::string& key, bool otherwise) const {
  if (!has(key)) {
    return otherwise;
  }
  if (!json_.at(key).is_boolean()) {
    refuse(key, "give true or false");
  }
  return json_.at(key).get<bool>();
}

std::vector<Component> Component::list(const std::string& key) const {
  const Component value = at(key);
  if (!value.json_.is_array()) {
    refuse(key, "give a list");
  }
  std::vector<Component> members;
  for (size_t i = 0; i < value.json_.size(); ++i) {
    members.emplace_back(value.json_[i], file_, fmt::format("{}[{}]", value.name_, i));
  }
  return members;
}

void Component::refuse(const std::string& key, std::string_view allowed) const {
  throw UserError(
      "{}{}{} is {}; {}", where(), name_.empty() ? ": " : ".", key, shown(json_.at(key)), allowed);
}

} // namespace palimpsest
