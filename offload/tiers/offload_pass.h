#pragma once

// The pass that moves slots off the device between their uses: STASH after one, FETCH before the
// next.
//
//   plans = offload_pass(plans, job, options);
//
// A slot leaves where its next use is more than read_ahead + 1 timed operations away, and returns
// read_ahead of them before it. A STASH is needed only where the copy on the tier is absent or
// stale. States start and end on their tier.

#include <palimpsest/core/plan/plan_pass.h>

namespace palimpsest {

/// Where this job keeps such a slot between its uses.
TierId resting_tier(const Slot& slot, const Placement& placement);

Plans offload_pass(const Plans& plans, const Job& job, const PlanOptions& options);

} // namespace palimpsest
