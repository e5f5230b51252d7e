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
  if (transposed_) {
    return unit_->parameters()[first_].shape.at(1);
  }
  int64_t rows = 0;
  for (size_t index = first_; index < first_ + count_; ++index) {
    rows += unit_->parameters()[index].shape.at(0);
  }
  return rows;
}

int64_t ParamRef::numel() const {
  int64_t numel = 0;
  for (size_t index = first_; index < first_ + count_; ++index) {
    numel += unit_->parameters()[index].numel;
  }
  return numel;
}

BlockUnits add_units(
    Chain& chain,
    const std::string& name,
    const std::vector<std::vector<Parameter>>& groups,
    at::ScalarType dtype,
    const TrainableFilter& trainable,
    std::shared_ptr<const ParamCodec> codec) {
  BlockUnits result{.refs = std::vector<ParamRef>(groups.size()), .units = {}};
  enum class Kind { kTrained, kFrozen, kCoded };
  const auto kind_of = [&](const std::vector<Parameter>& group) {
    if (group_trainable(group, trainable)) {
      return Kind::kTrained;
    }
    return codec != nullptr && group.front().shape.size() > 1 ? Kind::kCoded : Kind::kFrozen;
  };
  for (const Kind kind : {Kind::kTrained, Kind::kFrozen, Kind::kCoded}) {
    std::vector<Parameter> parameters;
    std::vector<std::pair<size_t, size_t>> places; // group, its first parameter in the unit
    for (size_t index = 0; index < groups.size(); ++index) {
      const std::vector<Parameter>& group = groups[index];
      if (!group.empty() && kind_of(group) == kind) {
        places.emplace_back(index, parameters.size());
        parameters.insert(parameters.end(), group.begin(), group.end());
      }
    }
    if (parameters.empty()) {
      continue;
    }
    std::string full = kind == Kind::kTrained ? name : name + ".frozen";
    if (kind == Kind::kCoded) {
      full += "." + std::string(codec->name());
    }
    result.units.push_back(static_cast<int>(chain.units.size()));
    chain.units.push_back(std::make_unique<ParamUnit>(
        std::move(full),
        std::move(parameters),
        dtype,
        kind == Kind::kTrained,
        kind == Kind::kCoded ? codec : nullptr));
    for (const auto& [group, first] : places) {
      result.refs[group] = ParamRef(*chain.units.back(), first, groups[group].size());
    }
  }
  return result;
}

} // namespace palimpsest
