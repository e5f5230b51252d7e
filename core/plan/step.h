#pragma once

// The pass that ends a step: AGREE, then UPDATE of each trained unit (and PUBLISH where whole
// parameters have sharded optimizers), then COMMIT. Nothing in evaluation.
//
//   plans = step_pass(plans, job, options);

#include <palimpsest/core/plan/plan_pass.h>

namespace palimpsest {

Plans step_pass(const Plans& plans, const Job& job, const PlanOptions& options);

} // namespace palimpsest
