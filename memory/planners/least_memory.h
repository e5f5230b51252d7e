#pragma once

// The persistent plan of a chain with the smallest peak, whatever its time.
//
//   const Segments segments = least_memory(chain);
//   run_chain(chain, segments).peak                  // the least budget that any planner can use

#include <palimpsest/core/plan/cost_chain.h>

namespace palimpsest {

/// Of stages. For n stages: n^3 / 6 steps, n^2 integers. Among plans of one part with the smallest
/// peak, one that leaves a tape where it can, else cuts near the middle.
Segments least_memory(const CostChain& chain);

} // namespace palimpsest
