#pragma once

// The pass that connects pipeline ranks: a SEND right after its slot is complete, the RECV right
// before its first reader.
//
//   plans = point_to_point_pass(plans, job, options);
//
// A value goes once to each rank that reads it; its gradient comes back once from each, when all
// readers there have added to it. A pair of ranks is one ordered channel, so a RECV pulls in all
// that was sent before it.

#include <palimpsest/core/plan/plan_pass.h>

namespace palimpsest {

Plans point_to_point_pass(const Plans& plans, const Job& job, const PlanOptions& options);

} // namespace palimpsest
