#pragma once

// The best makespan of a small chain by trying everything, knowing nothing of planners.
//
//   std::optional<double> best = exhaustive_makespan(chain, budget);
//
// Shortest path over states: which outputs and tapes are held, what the last FORWARD wrote, whose
// gradient is live.

#include <palimpsest/core/plan/cost_chain.h>

#include <cstdint>
#include <optional>

namespace palimpsest::testing {

/// Of persistent schedules: a FORWARD consumes the output that the operation before it wrote, or
/// keeps its source; what is kept stays until the BACKWARD that uses it. At most 8 stages with two
/// tapes each. Empty where none fits.
std::optional<double> exhaustive_makespan(const CostChain& chain, int64_t budget);

} // namespace palimpsest::testing
