#pragma once

// Time against memory: what every planner makes of a run's model.
//
//   report.planners = planner_curve(run.plans(), run.micro_batches(), "sqrt");

#include <palimpsest/launcher/compose/planning.h>
#include <palimpsest/memory/report/report.h>

#include <string>
#include <vector>

namespace palimpsest {

/// For each planner of memory/planners its plans for `budgets` budgets, from the least it can use to
/// what keeps everything; those that are alike once. Peaks and seconds are those of the whole step,
/// simulated with the run's own placement and ranks. The run's own plan, made by the policy
/// `chosen`, comes last and is marked.
std::vector<PlannerPoint> planner_curve(
    PlanBook& book,
    int micro_batches,
    const std::string& chosen,
    int budgets = 8);

} // namespace palimpsest
