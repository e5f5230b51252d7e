#pragma once

// Costs made truer by a step as it ran: a block by itself is measured with warm caches and an idle
// machine, a step has neither.
//
//   cost = refined(cost, step.plan, seconds);       // seconds[i]: what operation i took

#include <palimpsest/core/plan/cost_model.h>
#include <palimpsest/core/plan/plan.h>

#include <vector>

namespace palimpsest {

/// Moves each block's seconds of forward and backward half of the way to what they took in the
/// step, and so each unit's update. Blocks with equal costs stay equal: together they are moved by
/// the ratio of their sums. What the step does not show (a lean tape's redoing, the halves of a
/// backward) keeps its proportion. `seconds`: by operation.
ModelCost refined(ModelCost cost, const StepPlan& plan, const std::vector<double>& seconds);

} // namespace palimpsest
