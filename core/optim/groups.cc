#include <palimpsest/core/optim/groups.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/pattern.h>

#include <algorithm>

namespace palimpsest {

ParameterGroups::ParameterGroups(
    const std::vector<GroupRule>& rules,
    double weight_decay,
    std::span<const std::string> names)
    : default_{.weight_decay = weight_decay} {
  for (const GroupRule& rule : rules) {
    const Pattern expression("optimizer.groups", rule.match);
    const GroupValues values{
        rule.learning_rate_multiplier, rule.weight_decay.value_or(weight_decay)};
    bool taken_earlier = false;
    bool counts = false;
    for (const std::string& name : names) {
      if (expression.found_in(name)) {
        (values_.try_emplace(name, values).second ? counts : taken_earlier) = true;
      }
    }
    if (!counts && taken_earlier) {
      throw UserError(
          "optimizer.groups: \"{}\" never counts, since earlier groups match all of its "
          "parameters; put it before them or remove it",
          rule.match);
    }
    if (!counts) {
      throw UserError(
          "optimizer.groups: \"{}\" matches none of the {} trainable parameters (the first is {})",
          rule.match,
          names.size(),
          names.empty() ? "missing" : names.front());
    }
  }
}

GroupValues ParameterGroups::of(const std::string& parameter) const {
  const auto found = values_.find(parameter);
  return found == values_.end() ? default_ : found->second;
}

std::vector<GroupRange> ParameterGroups::ranges(const ParamUnit& unit, int64_t begin, int64_t end)
    const {
  std::vector<GroupRange> ranges;
  const auto append = [&](int64_t first, int64_t last, const GroupValues& values) {
    const bool joins = !ranges.empty() &&
        GroupValues{ranges.back().learning_rate_factor, ranges.back().weight_decay} == values;
    if (joins) {
      ranges.back().end = last;
    } else {
      ranges.push_back({first, last, values.learning_rate_factor, values.weight_decay});
    }
  };
  for (const Parameter& parameter : unit.parameters()) {
    const int64_t first = std::max(begin, parameter.offset);
    const int64_t last = std::min(end, parameter.offset + parameter.numel);
    if (first < last) {
      append(first - begin, last - begin, of(parameter.name));
    }
  }
  if (ranges.empty() && begin < end) {
    append(0, end - begin, default_);
  } else if (!ranges.empty()) {
    ranges.back().end = end - begin;
  }
  return ranges;
}

} // namespace palimpsest
