#pragma once

// Strategies by name, filled by explicit register_*() calls; nothing registers itself.
//
//   Registry<ModelFactory> families("model.family");
//   families.add("llama", build_llama);
//   Chain chain = families.at("llama")(settings);      // an unknown name: UserError with the valid ones

#include <palimpsest/core/base/error.h>

#include <fmt/ranges.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace palimpsest {

template <typename Factory>
class Registry {
 public:
  /// `key`: the config key whose value is looked up, for messages.
  explicit Registry(std::string key) : key_(std::move(key)) {}

  /// InternalError where the name is taken.
  void add(std::string name, Factory factory) {
    const auto [place, added] = factories_.emplace(std::move(name), std::move(factory));
    check(added, "{} '{}' is registered twice", key_, place->first);
  }

  const Factory& at(std::string_view name) const {
    const auto found = factories_.find(name);
    if (found == factories_.end()) {
      throw UserError("{}: '{}' is unknown; give one of {}", key_, name, fmt::join(names(), ", "));
    }
    return found->second;
  }

  /// In alphabetical order.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [name, factory] : factories_) {
      result.push_back(name);
    }
    return result;
  }

 private:
  std::string key_;
  std::map<std::string, Factory, std::less<>> factories_;
};

} // namespace palimpsest
