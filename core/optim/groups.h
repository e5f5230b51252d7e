#pragma once

// Parameter groups: which parameter gets which learning rate factor and which weight decay.
//
//   const ParameterGroups groups({{.match = "norm|bias$", .weight_decay = 0}}, 0.1, names);
//   shard.groups = groups.ranges(unit, 0, unit.numel());
//
// Without a rule every parameter decays, norms and biases too, as in torch.optim.AdamW over
// model.parameters(). The rule above takes norms and biases out.

#include <palimpsest/core/contracts/param_store.h>
#include <palimpsest/core/contracts/param_unit.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace palimpsest {

/// One entry of `optimizer.groups`.
struct GroupRule {
  std::string
      match; ///< ECMAScript regular expression, searched anywhere in a parameter's global name
  double learning_rate_multiplier = 1;
  std::optional<double> weight_decay = std::nullopt; ///< the default one where absent
};

struct GroupValues {
  double learning_rate_factor = 1;
  double weight_decay = 0;
  friend bool operator==(const GroupValues&, const GroupValues&) = default;
};

class ParameterGroups {
 public:
  /// `names`: all trainable parameters. The first rule that matches a name counts; the others get
  /// factor 1 and `weight_decay`. UserError naming the rule where its expression is invalid, or
  /// where no parameter gets it.
  ParameterGroups(
      const std::vector<GroupRule>& rules,
      double weight_decay,
      std::span<const std::string> names);

  GroupValues of(const std::string& parameter) const;

  /// The groups of elements [begin, end) of a unit's flat buffer, counted from `begin`, neighbours
  /// of equal values joined. Padding behind the unit's last parameter goes with what stands before
  /// it: zeros stay zeros under any values. An empty shard has no ranges.
  std::vector<GroupRange> ranges(const ParamUnit& unit, int64_t begin, int64_t end) const;

 private:
  GroupValues default_;
  std::map<std::string, GroupValues, std::less<>> values_; // of the parameters that a rule matched
};

} // namespace palimpsest
