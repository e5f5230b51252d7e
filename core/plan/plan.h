#pragma once

// A training step is a value: for each rank, the ordered list of operations it performs for one
// optimizer step.
//
//   Plans plans = compose(job, schedule, options);        // one plan a pipeline rank
//   std::cout << to_text(plans[0]);                       // one operation a line
//   parse_plan(to_text(plans[0])) == plans[0];
//
// Data-parallel peers run the same plan.

#include <palimpsest/core/plan/op.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// Of one rank.
using StepPlan = std::vector<Op>;

/// Of the pipeline ranks, or (where said so) of all ranks of the world.
using Plans = std::vector<StepPlan>;

/// One operation a line.
std::string to_text(const StepPlan& plan);

/// The inverse; empty lines and those that begin with '#' are skipped. Throws UserError naming the
/// line.
StepPlan parse_plan(std::string_view text);

/// The same number on every machine for equal plans.
uint64_t plan_hash(const StepPlan& plan);

} // namespace palimpsest
