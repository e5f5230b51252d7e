#pragma once

// The pass that sums gradients over ranks: REDUCE as soon as the buffer holds whole micro-batches.
//
//   plans = reduce_pass(plans, job, options);
//
// Each micro-batch by itself where gradients are sharded (one late REDUCE would undo what ZeRO-2
// and 3 save) or sums must be reproducible (UserError where the schedule mixes micro-batches), all
// at once elsewhere. Replicate follows the last shard; tie comes after
// all compute and SENDs, because its other rank needs what this one still has to send.

#include <palimpsest/core/plan/plan_pass.h>

namespace palimpsest {

Plans reduce_pass(const Plans& plans, const Job& job, const PlanOptions& options);

} // namespace palimpsest
