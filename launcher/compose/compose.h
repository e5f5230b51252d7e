#pragma once

// The composition of strategies: reads top to bottom as the order of the passes.
//
//   Plans plans = compose(job, find_schedule("1f1b"), options);
//   PlanReport report = simulate(plans, job);               // plans leak until the last pass: verify here
//
// Recompute must precede gather, and recompute, gather, reduce and step must precede offload; drop
// is last.

#include <palimpsest/core/plan/plan_pass.h>
#include <palimpsest/core/plan/schedule.h>

#include <vector>

namespace palimpsest {

/// In their order, for those who time, switch or verify them one by one.
std::vector<PlanPass> passes();

/// The plans of the pipeline ranks. Throws UserError where schedule and stages do not fit.
Plans compose(const Job& job, const Schedule& schedule, const PlanOptions& options);

} // namespace palimpsest
