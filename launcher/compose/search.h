#pragma once

// The search for what to keep: policies and planners propose, whole plans are composed and
// simulated, the fastest that stays within the budget is taken.
//
//   const auto evaluate = [&](const Segments& segments) { return StepCost{peak, seconds}; };
//   const SearchResult found = search(job, "auto", int64_t{8} << 30, evaluate);
//   if (found.best) { use(found.best->segments); } else { tell(found.least.cost.peak); }
//
// A planner knows a chain of blocks; states, communication and several micro-batches at once it
// does not know. So its budget is the step's less what simulate() finds outside of the chain,
// adjusted until the whole step fits. Of the policies' many settings whole steps are composed only
// for those that the chain does not show to be slower or too large.

#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/segment.h>
#include <palimpsest/core/plan/simulate.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

/// What simulate() says of a whole step on the rank that needs most.
struct StepCost {
  int64_t peak = 0; ///< bytes on the device
  double seconds = 0;
  double computing = 0; ///< of these seconds, those in which the device computes
};

/// The cost that a report shows. `peak`: with what the step needs beside its plan.
StepCost step_cost(const PlanReport& report, int64_t peak);

/// What a step costs if its recomputation is decided so.
using Evaluate = std::function<StepCost(const Segments&)>;

struct StepChoice {
  std::string policy; ///< "uniform, 4 segments, lean tapes"
  Segments segments;
  StepCost cost;
};

struct SearchResult {
  std::optional<StepChoice> best; ///< none: nothing found fits
  StepChoice least; ///< of all tried, the one that needs the fewest bytes
};

/// Whether a policy decides by a budget: auto and the planners (memory/planners).
bool needs_budget(const std::string& policy);

/// The fastest choice whose peak is at most `budget` bytes; of equally fast ones that were composed
/// the smallest.
/// `policy`: auto (every policy and the optimal planner) or one planner's name.
SearchResult search(
    const Job& job,
    const std::string& policy,
    int64_t budget,
    const Evaluate& evaluate);

/// Every simple policy in its settings, with full and with lean tapes; costs are left open.
std::vector<StepChoice> simple_choices(const ModelCost& model);

} // namespace palimpsest
