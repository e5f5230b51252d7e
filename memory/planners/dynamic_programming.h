#pragma once

// The fastest persistent plan of a chain at any budget, from one table.
//
//   const DynamicProgram program(chain, largest_budget);
//   ChainPlan plan = program.plan(budget);                  // for every budget up to the largest
//
// C(s, t, m): fewest seconds to run stages s..t forward and back with m bytes beside the input of s,
// while the gradient of t's output is live. Either s leaves a tape, of one of its kinds, and
// s + 1..t follow; or the output of a later stage k - 1 is kept, k..t are done first and s..k - 1
// after them. (Beaumont et al. 2019, arXiv:1911.13214, theorem 1; with the live gradient and those of
// later weights charged.)
//
// The table counts memory in slots. Where the chain's sizes have a common divisor so large that
// what keeps everything takes at most `slots` of it, that is the slot and the plan is the optimum;
// else what is kept is rounded up to slots (of a size that divides it, where there is one), and of
// budgets below the largest less than a slot is lost: a plan never exceeds its budget, but may be
// slower than the optimum. Exact in any case are the least budget and that nothing runs again where all tapes
// fit; and more budget is never slower.
//
// With n stages and S slots up to the largest budget: about n^3 S / 6 steps, n^2 S / 2 floats.
// Seconds are compared in single precision.

#include <palimpsest/memory/planners/planner.h>
#include <palimpsest/memory/planners/seconds_table.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace palimpsest {

class DynamicProgram {
 public:
  /// `slots`: that keeping everything takes; 0: as many as a second or so and 64 MiB allow, but 200.
  DynamicProgram(const CostChain& chain, int64_t largest_budget, int slots = 0);

  /// `budget`: at most the largest. Throws InfeasibleBudget.
  ChainPlan plan(int64_t budget) const;

  /// Below it plan() refuses.
  int64_t least_budget() const {
    return least_budget_;
  }
  int64_t slot_bytes() const {
    return slot_;
  }
  /// Whether the table counts some size of the chain in more than it is.
  bool rounds() const {
    return rounds_;
  }
  size_t table_bytes() const {
    return table_ ? table_->bytes() : 0;
  }

 private:
  CostChain chain_;
  CostChain chain_with_loss_;
  Segments least_; // the plan that needs least
  int64_t least_budget_;
  int64_t all_tapes_; // bytes that keep everything
  int64_t slot_;
  bool rounds_;
  int64_t uneven_ = 0; // of the largest budget, beside whole slots
  std::optional<SecondsTable> table_; // none where the largest budget is below the least
};

} // namespace palimpsest
