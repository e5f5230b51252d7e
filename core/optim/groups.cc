#include <palimpsest/core/optim/groups.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <regex>

namespace palimpsest {

namespace {

// std::regex recurses over its expression: longer ones could overflow the stack.
constexpr size_t kLongestExpression = 1000;

std::regex compile(const GroupRule& rule) {
  if (rule.match.size() > kLongestExpression) {
    throw UserError(
        "optimizer.groups: a regular expression of {} characters is too long; at most {} are "
        "allowed",
        rule.match.size(),
        kLongestExpression);
  }
  try {
    return std::regex(rule.match);
  } catch (const std::regex_error& error) {
    throw UserError(
        "optimizer.groups: \"{}\" is not a valid regular expression: {}", rule.match, error.what());
  }
}

bool matches(const std::string& name, const std::regex& expression, const GroupRule& rule) {
  try {
    return std::regex_search(name, expression);
  } catch (const std::regex_error& error) {
    throw UserError(
        "optimizer.groups: \"{}\" cannot be matched against {}: {}",
        rule.match,
        name,
        error.what());
  }
}

} // namespace

ParameterGroups::ParameterGroups(
    const std::vector<GroupRule>& rules,
    double weight_decay,
    std::span<const std::string> names)
    : default_{.weight_decay = weight_decay} {
  for (const GroupRule& rule : rules) {
    const std::regex expression = compile(rule);
    const GroupValues values{
        rule.learning_rate_multiplier, rule.weight_decay.value_or(weight_decay)};
    bool taken_earlier = false;
    bool counts = false;
    for (const std::string& name : names) {
      if (matches(name, expression, rule)) {
        (values_.try_emplace(name, values).second ? counts : taken_earlier) = true;
      }
    }
    if (!counts && taken_earlier) {
      throw UserError(
          "optimizer.groups: \"{}\" never counts, since earlier groups match all of its "
          "parameters; put "
          "it before them or remove it",
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
