#pragma once

// A report's step: from a plan, its timeline, and the step as it ran.
//
//   add_step(report, step.job, step.plan, trace(spread(plans, mesh), step.job, 0));
//   add_measured(report, step_trace.last());          // beside it

#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>
#include <palimpsest/core/plan/timeline.h>
#include <palimpsest/memory/report/report.h>
#include <palimpsest/memory/track/step_trace.h>

#include <vector>

namespace palimpsest {

/// Fills operations and layers, and of the summary what the timeline's rank tells: its peak, the
/// step's seconds, the share that is recomputed.
void add_step(Report& report, const Job& job, const StepPlan& plan, const Timeline& timeline);

/// Fills what was measured of each operation. An InternalError where their number differs.
void add_measured(Report& report, const std::vector<TracedOp>& ops);

} // namespace palimpsest
