#pragma once

// The pass of layered gradient checkpointing: gives FORWARDs the decided tapes, and runs blocks
// again before their BACKWARD where there is none.
//
//   options.segments = find_policy("sqrt").decide(model, {});
//   plans = recompute_pass(plans, job, options);
//
// A rerun yields only what somebody in its segment reads. What was sent to another rank is kept,
// not written again. Blocks without a BACKWARD never run again; a segment ends where its stage
// ends.

#include <palimpsest/core/plan/plan_pass.h>

namespace palimpsest {

Plans recompute_pass(const Plans& plans, const Job& job, const PlanOptions& options);

} // namespace palimpsest
