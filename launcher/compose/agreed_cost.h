#pragma once

// Measured costs that all ranks agree on, so that all make the same plan.
//
//   agree_on_cost(cost, *world);       // every number is the largest of any rank's

#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/core/plan/cost_model.h>
#include <palimpsest/core/plan/job.h>

namespace palimpsest {

/// Collective. All ranks have measured the same model; bytes differ where a rank's micro-batches
/// are smaller.
void agree_on_cost(ModelCost& cost, Communicator& ranks);

/// Collective: what an all-gather over these ranks takes for each byte of its result, the slowest
/// rank's best of three.
LinkCosts measure_links(Communicator& ranks);

} // namespace palimpsest
