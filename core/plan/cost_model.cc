#include <palimpsest/core/plan/cost_model.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/op.h>

#include <algorithm>
#include <set>

namespace palimpsest {
namespace {

std::string block_name(const ModelCost& model, int block) {
  const std::string& name = model.blocks[static_cast<size_t>(block)].name;
  return name.empty() ? "block " + std::to_string(block) : "block " + name;
}

bool has_value(const ModelCost& model, ValueRef value) {
  if (value.producer == kLoader) {
    return value.index == 0;
  }
  return value.producer >= 0 && value.producer < static_cast<int>(model.blocks.size()) &&
      value.index >= 0 &&
      value.index <
      static_cast<int>(model.blocks[static_cast<size_t>(value.producer)].value_bytes.size());
}

template <typename T>
bool distinct(const std::vector<T>& items) {
  return std::set<T>(items.begin(), items.end()).size() == items.size();
}

bool negative(const PerTape<int64_t>& bytes) {
  return bytes.none < 0 || bytes.lean < 0 || bytes.full < 0;
}

void validate_block(const ModelCost& model, int number) {
  const BlockCost& block = model.blocks[static_cast<size_t>(number)];
  const std::string name = block_name(model, number);
  for (const ValueRef value : block.reads) {
    if (!has_value(model, value) || value.producer >= number) {
      throw UserError(
          "{}: reads value ({}, {}), which no earlier block writes",
          name,
          value.producer,
          value.index);
    }
  }
  if (!distinct(block.reads) || !distinct(block.units)) {
    throw UserError("{}: reads or units are repeated; name each once", name);
  }
  if (block.saves && !distinct(*block.saves)) {
    throw UserError("{}: saves are repeated; name each once", name);
  }
  for (const ValueRef value : block.saves.value_or(std::vector<ValueRef>())) {
    if (std::find(block.reads.begin(), block.reads.end(), value) == block.reads.end()) {
      throw UserError(
          "{}: saves value ({}, {}), which it does not read", name, value.producer, value.index);
    }
  }
  for (const int unit : block.units) {
    if (unit < 0 || unit >= static_cast<int>(model.units.size())) {
      throw UserError("{}: unit {} does not exist; there are {}", name, unit, model.units.size());
    }
  }
  if (block.value_bytes.size() > ValueSet::kLimit) {
    throw UserError(
        "{}: writes {} values; at most {} are allowed",
        name,
        block.value_bytes.size(),
        ValueSet::kLimit);
  }
  if (block.value_bytes.empty() != (number == model.terminal())) {
    throw UserError("{}: only the last block, and it always, writes no values", name);
  }
  const bool wrong = std::any_of(
      block.value_bytes.begin(), block.value_bytes.end(), [](int64_t bytes) { return bytes < 0; });
  if (wrong || block.lean_bytes < 0 || block.full_bytes < 0 || block.weight_jobs_bytes < 0 ||
      negative(block.forward_workspace) || negative(block.backward_workspace) ||
      block.weight_workspace < 0) {
    throw UserError("{}: a size is negative", name);
  }
}

} // namespace

void ModelCost::validate() const {
  if (blocks.empty()) {
    throw UserError("the model has no blocks; it needs at least a terminal one");
  }
  for (int number = 0; number <= terminal(); ++number) {
    validate_block(*this, number);
  }
  for (const UnitCost& unit : units) {
    if (unit.parameter_bytes < 0 || unit.gradient_bytes < 0 || unit.state_bytes < 0 ||
        unit.update_workspace < 0) {
      throw UserError("unit {}: a size is negative", unit.name);
    }
    const auto uneven = [&](int64_t bytes) {
      return unit.elements != 0 && bytes * kByteBlock % unit.elements != 0;
    };
    if (unit.elements < 0 || uneven(unit.parameter_bytes) || uneven(unit.gradient_bytes) ||
        uneven(unit.state_bytes)) {
      throw UserError("unit {}: its bytes are no multiple of its elements", unit.name);
    }
  }
  int end = 0;
  for (const LayerCost& layer : layers) {
    if (layer.blocks.empty() || layer.blocks.begin < end || layer.blocks.end > terminal()) {
      throw UserError(
          "layer {}: blocks [{}, {}) are empty, out of order, or reach the terminal block {}",
          layer.name,
          layer.blocks.begin,
          layer.blocks.end,
          terminal());
    }
    end = layer.blocks.end;
  }
}

} // namespace palimpsest
