#include <palimpsest/memory/profile/refine.h>

#include <palimpsest/core/base/error.h>

#include <map>
#include <tuple>

namespace palimpsest {
namespace {

/// Blocks with the same numbers are the same block, measured once.
using Kind = std::tuple<double, double, double, double, double, double, int64_t, int64_t>;

Kind kind_of(const BlockCost& block) {
  return {
      block.forward_seconds,
      block.value_seconds.lean,
      block.value_seconds.full,
      block.input_seconds,
      block.weight_seconds,
      block.lean_seconds,
      block.lean_bytes,
      block.full_bytes};
}

struct Sums {
  double predicted = 0;
  double measured = 0;

  void add(double one, double other) {
    predicted += one;
    measured += other;
  }
  /// Half of the way from 1 to measured / predicted.
  double factor() const {
    return predicted > 0 ? (1 + measured / predicted) / 2 : 1;
  }
};

struct BlockSums {
  Sums forward;
  Sums backward;
};

double predicted_backward(const BlockCost& block, BackwardPart part, TapeMode tape) {
  const double input = part != BackwardPart::kWeight ? block.input_seconds : 0;
  const double weight = part != BackwardPart::kInput ? block.weight_seconds : 0;
  const bool redoes = part != BackwardPart::kWeight && tape == TapeMode::kLean;
  return input + weight + (redoes ? block.lean_seconds : 0);
}

} // namespace

ModelCost refined(ModelCost cost, const StepPlan& plan, const std::vector<double>& seconds) {
  check(seconds.size() == plan.size(), "{} seconds for {} operations", seconds.size(), plan.size());
  std::map<Kind, BlockSums> kinds;
  std::map<std::pair<int, int>, TapeMode> tapes; // by block and micro-batch
  Sums updates;
  for (size_t index = 0; index < plan.size(); ++index) {
    const Op& op = plan[index];
    if (op.kind == OpKind::kUpdate) {
      updates.add(cost.units[static_cast<size_t>(op.unit)].update_seconds, seconds[index]);
    }
    if (op.kind != OpKind::kForward && op.kind != OpKind::kBackward) {
      continue;
    }
    const BlockCost& block = cost.blocks[static_cast<size_t>(op.block)];
    TapeMode& tape = tapes[{op.block, op.mb}];
    if (op.kind == OpKind::kForward) {
      tape = op.tape;
      const double unread = op.yields.empty() ? block.value_seconds.of(op.tape) : 0;
      kinds[kind_of(block)].forward.add(block.forward_seconds - unread, seconds[index]);
    } else {
      kinds[kind_of(block)].backward.add(predicted_backward(block, op.part, tape), seconds[index]);
    }
  }
  for (BlockCost& block : cost.blocks) {
    const auto found = kinds.find(kind_of(block));
    if (found == kinds.end()) {
      continue;
    }
    const double forward = found->second.forward.factor();
    const double backward = found->second.backward.factor();
    block.forward_seconds *= forward;
    block.value_seconds.lean *= forward;
    block.value_seconds.full *= forward;
    block.input_seconds *= backward;
    block.weight_seconds *= backward;
    block.lean_seconds *= backward;
  }
  for (UnitCost& unit : cost.units) {
    unit.update_seconds *= updates.factor();
  }
  return cost;
}

} // namespace palimpsest
