#pragma once

// What a plan sends to other ranks.
//
//   const PlanTraffic traffic = plan_traffic(plan, job);
//   traffic.gathers.calls, traffic.bytes();
//
// Counted as parallel/comm/counting.h does it, so that counted and planned can be compared.

#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <cstdint>

namespace palimpsest {

/// Bytes that each rank of the group has to send at least for a GATHER, REDUCE or PUBLISH, however
/// an engine does it; 0 in a group of one. Of n ranks' whole buffer (n - 1) / n, twice that where all
/// get a sum.
double moved_bytes(const Op& op, const Job& job);

/// Operations of groups of several ranks, and their moved_bytes().
struct TrafficSum {
  int64_t operations = 0;
  double bytes = 0;
};

struct PlanTraffic {
  TrafficSum gathers;
  TrafficSum shard_sums; ///< REDUCE, axis shard
  TrafficSum replica_sums; ///< REDUCE, axis replicate
  TrafficSum tie_sums; ///< REDUCE, axis tie
  TrafficSum publishes;

  double bytes() const;
};

/// Of one rank in a step, AGREE and transfers between pipeline stages left out.
PlanTraffic plan_traffic(const StepPlan& plan, const Job& job);

} // namespace palimpsest
