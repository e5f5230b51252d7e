#include <palimpsest/core/models/freeze.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>

namespace palimpsest {
namespace {

std::vector<std::string> names(const Chain& chain) {
  std::vector<std::string> names;
  for (const auto& unit : chain.units) {
    for (const Parameter& parameter : unit->parameters()) {
      names.push_back(parameter.name);
    }
  }
  return names;
}

} // namespace

Freeze::Freeze(const std::string& key, const std::vector<std::string>& expressions) : key_(key) {
  for (const std::string& expression : expressions) {
    patterns_.emplace_back(expression, Pattern(key, expression));
  }
}

TrainableFilter Freeze::trainable() const {
  if (patterns_.empty()) {
    return {};
  }
  return [patterns = patterns_](const std::string& name) {
    return std::ranges::none_of(
        patterns, [&](const auto& pattern) { return pattern.second.found_in(name); });
  };
}

void Freeze::check(const Chain& chain) const {
  const std::vector<std::string> all = names(chain);
  for (const auto& [expression, pattern] : patterns_) {
    if (std::ranges::none_of(all, [&](const auto& name) { return pattern.found_in(name); })) {
      throw UserError(
          "{}: '{}' is found in no parameter's name; they read {}, {}, ..., {}",
          key_,
          expression,
          all.front(),
          all[all.size() / 2],
          all.back());
    }
  }
  if (!patterns_.empty() && chain.trained_count() == 0) {
    throw UserError("{} leaves nothing to train; leave some parameters out of it", key_);
  }
}

} // namespace palimpsest
