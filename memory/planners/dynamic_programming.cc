#include <palimpsest/memory/planners/dynamic_programming.h>

#include <palimpsest/memory/planners/candidates.h>
#include <palimpsest/memory/planners/chain_run.h>
#include <palimpsest/memory/planners/least_memory.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace palimpsest {
namespace {

constexpr int kFewestSlots = 200;
constexpr int kMostSlots = 8192;
constexpr double kSteps = 4e9; // of the table, in a second or so
constexpr double kFloats = 1 << 24; // of the table

int slots_for(double stages) {
  const double steps = std::pow(stages, 3) / 6; // a slot
  const double floats = std::pow(stages, 2) / 2;
  return static_cast<int>(
      std::clamp<double>(std::min(kSteps / steps, kFloats / floats), kFewestSlots, kMostSlots));
}

/// The largest number that divides every size of the chain.
int64_t common_divisor(const CostChain& chain) {
  int64_t divisor = std::gcd(chain.input_bytes, chain.loss_workspace);
  divisor = std::gcd(divisor, chain.loss_gradient_bytes);
  for (const ChainStage& stage : chain.stages) {
    divisor = std::gcd(std::gcd(divisor, stage.output_bytes), stage.forward_workspace);
    divisor = std::gcd(divisor, stage.gradient_bytes);
    for (const TapeOption& tape : stage.tapes) {
      divisor = std::gcd(std::gcd(divisor, tape.bytes), tape.forward_workspace);
      divisor = std::gcd(divisor, tape.backward_workspace);
    }
  }
  return std::max<int64_t>(divisor, 1);
}

/// At least so many bytes. A part of whatever is kept, where that has one, so that nothing is lost
/// by rounding; what is smaller than a slot takes one.
int64_t slot_for(const CostChain& chain, int64_t least) {
  int64_t divisor = 0;
  const auto include = [&](int64_t bytes) {
    divisor = bytes < least ? divisor : std::gcd(divisor, bytes);
  };
  for (const ChainStage& stage : chain.stages) {
    include(stage.output_bytes);
    for (const TapeOption& tape : stage.tapes) {
      include(tape.bytes);
    }
  }
  if (divisor < least) {
    return least;
  }
  int64_t parts = divisor / least;
  while (divisor % parts != 0) {
    --parts;
  }
  return divisor / parts;
}

} // namespace

DynamicProgram::DynamicProgram(const CostChain& chain, int64_t largest_budget, int slots)
    : chain_(chain), chain_with_loss_(loss_as_stage(chain)), least_(least_memory(chain)),
      least_budget_(run_chain(chain, least_).peak), all_tapes_(run_chain(chain, {}).peak) {
  const int wanted = slots > 0 ? slots : slots_for(chain.size() + 1);
  const int64_t least_slot = (all_tapes_ + wanted - 1) / wanted;
  const int64_t divisor = common_divisor(chain);
  rounds_ = divisor < least_slot;
  slot_ = rounds_ ? slot_for(chain, least_slot) : divisor;
  if (largest_budget >= least_budget_) {
    const int64_t useful = std::min(largest_budget, all_tapes_) - chain.input_bytes;
    uneven_ = rounds_ ? useful % slot_ : 0;
    table_.emplace(chain_with_loss_, slot_, static_cast<int>(useful / slot_), uneven_);
  }
}

ChainPlan DynamicProgram::plan(int64_t budget) const {
  Candidates candidates(chain_, budget);
  candidates.consider(least_);
  if (budget >= all_tapes_) {
    candidates.consider({});
  } else if (budget >= least_budget_) {
    const int64_t beside = budget - chain_.input_bytes - uneven_;
    const int slots = beside < 0 ? -1 : static_cast<int>(beside / slot_);
    check(table_ && slots <= table_->slots(), "a budget of {} is above the table's", budget);
    if (slots >= table_->least(0, chain_.size())) {
      const int64_t peak = candidates.consider(segments_of(
          chain_with_loss_,
          slots,
          [&](int s, int t, int left) { return table_->choose(s, t, left); },
          [&](int64_t bytes) { return table_->slots_of(bytes); }));
      check(peak <= budget, "a plan of {} bytes for a budget of {}", peak, budget);
    }
  }
  return candidates.fastest("dynamic_programming");
}

ChainPlan dynamic_programming(const CostChain& chain, int64_t budget) {
  return DynamicProgram(chain, budget).plan(budget);
}

} // namespace palimpsest
