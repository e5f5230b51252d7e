#include <palimpsest/core/models/param_ref.h>

#include <palimpsest/core/base/error.h>

#include <memory>
#include <utility>

namespace palimpsest {
namespace {

bool group_trainable(const std::vector<Parameter>& group, const TrainableFilter& trainable) {
  const bool first = trainable(group.front().name);
  for (const Parameter& parameter : group) {
    if (trainable(parameter.name) != first) {
      throw UserError(
          "{} and {} are computed as one product, so they are trained or frozen together; "
          "let the choice of trained parameters name both or neither",
          group.front().name,
          parameter.name);
    }
  }
  return first;
}

} // namespace

int64_t ParamRef::rows() const {
  int64_t rows = 0;
  for (size_t index = first_; index < first_ + count_; ++index) {
    rows += unit_->parameters()[index].shape.at(0);
  }
  return rows;
}

BlockUnits add_units(
    Chain& chain,
    const std::string& name,
    const std::vector<std::vector<Parameter>>& groups,
    at::ScalarType dtype,
    const TrainableFilter& trainable) {
  BlockUnits result{.refs = std::vector<ParamRef>(groups.size()), .units = {}};
  for (const bool trained : {true, false}) {
    std::vector<Parameter> parameters;
    std::vector<std::pair<size_t, size_t>> places; // group, its first parameter in the unit
    for (size_t index = 0; index < groups.size(); ++index) {
      const std::vector<Parameter>& group = groups[index];
      if (!group.empty() && group_trainable(group, trainable) == trained) {
        places.emplace_back(index, parameters.size());
        parameters.insert(parameters.end(), group.begin(), group.end());
      }
    }
    if (parameters.empty()) {
      continue;
    }
    result.units.push_back(static_cast<int>(chain.units.size()));
    chain.units.push_back(std::make_unique<ParamUnit>(
        trained ? name : name + ".frozen", std::move(parameters), dtype, trained));
    for (const auto& [group, first] : places) {
      result.refs[group] = ParamRef(*chain.units.back(), first, groups[group].size());
    }
  }
  return result;
}

} // namespace palimpsest
