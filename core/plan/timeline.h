#pragma once

// What one rank does when, and what it then holds by category: simulate(), told operation by
// operation.
//
//   Timeline timeline = trace(spread(plans, job.mesh()), job, 0);
//   timeline.ops[17].begin;                                  // seconds from the step's start
//   timeline.ops[17].bytes[PlanCategory::kTape];             // on the device, during the operation

#include <palimpsest/core/plan/simulate.h>

#include <optional>
#include <vector>

namespace palimpsest {

struct TimelineOp {
  double begin = 0; ///< seconds from the step's start
  double end = 0;
  std::optional<Lane> lane; ///< none: it takes no time
  /// On the device before what the operation frees, its workspace included: they add up to its
  /// RankReport::device_bytes.
  EnumArray<PlanCategory, int64_t, kPlanCategories> bytes{};
};

struct Timeline {
  std::vector<TimelineOp> ops; ///< of the rank's plan, in its order
  double seconds = 0; ///< of the step: the longest path through all ranks
  RankReport rank; ///< the same rank's totals
};

/// Of the world rank `rank`. Throws PlanError as simulate() does.
Timeline trace(const WorldPlans& plans, const Job& job, int rank);

} // namespace palimpsest
