#pragma once

// Planners of recomputation under a budget: which stages of a chain keep tapes, which outputs are
// kept to run again from.
//
//   const Planner planner = find_planner("dynamic_programming");
//   ChainPlan plan = planner.plan(chain, int64_t{8} << 30);
//   plan.makespan, plan.peak, plan.least_budget
//
// A planner is a pure function of chain and budget, in one file; adding one is one line in
// planners(). The budget covers what the chain counts (core/plan/cost_chain.h), its input included,
// and no plan is ever predicted above it.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/cost_chain.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

struct ChainPlan {
  Segments segments; ///< of stages
  double makespan = 0; ///< predicted seconds of one step
  int64_t peak = 0; ///< predicted bytes; never above the budget
  int64_t least_budget = 0; ///< the planner finds no plan below it
};

/// No plan fits. The message names the least budget that has one, and what dominates it.
class InfeasibleBudget : public UserError {
 public:
  InfeasibleBudget(int64_t least, const std::string& message)
      : UserError("{}", message), least_(least) {}
  int64_t least() const {
    return least_;
  }
  /// With something to do about it.
  InfeasibleBudget with(const std::string& advice) const {
    return {least_, fmt::format("{}; {}", what(), advice)};
  }

 private:
  int64_t least_;
};

struct Planner {
  std::string name;
  std::string help;
  /// `chain` is valid. Throws InfeasibleBudget.
  std::function<ChainPlan(const CostChain& chain, int64_t budget)> plan;
};

/// Runs of stages whose tapes fill a share of the budget; all but the last run again, each as one.
/// (Chen et al. 2016, arXiv:1604.06174, algorithm 3, at the share that is fastest.)
ChainPlan chen_greedy(const CostChain& chain, int64_t budget);

/// Binomial checkpointing: the fewest forwards of a chain of equal stages, one tape at a time, as
/// many kept outputs as fit. (Griewank and Walther 2000, Algorithm 799.)
ChainPlan revolve(const CostChain& chain, int64_t budget);

/// The fastest persistent plan: what is kept, output or tape, stays until the BACKWARD that uses
/// it. (Beaumont et al. 2019, arXiv:1911.13214.) See dynamic_programming.h for its accuracy.
ChainPlan dynamic_programming(const CostChain& chain, int64_t budget);

/// All of the above, and the policies of memory/recompute, each at its fastest setting that fits:
/// none, full, every_n, uniform, sqrt, key_layers.
std::vector<Planner> planners();

/// Throws UserError listing the names.
Planner find_planner(std::string_view name);

} // namespace palimpsest
