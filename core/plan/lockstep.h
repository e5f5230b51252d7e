#pragma once

// simulate() for worlds too large to follow each rank: data-parallel peers run the same plan on
// equal bytes, so one rank of each pipeline rank stands for all of its peers.
//
//   PlanReport report = simulate_lockstep(plans, job);           // report.ranks: by pipeline rank
//   simulate_lockstep(plans, job, [&](const Op& op, const Job& job) { return network.seconds(op, job); });
//
// Bytes and seconds equal simulate()'s, in time and space that do not grow with the world. Verified
// is what one rank's plan can break by itself and what pipeline ranks can break together; that
// peers' gradients meet exactly once is simulate()'s to verify.

#include <palimpsest/core/plan/simulate.h>

#include <functional>

namespace palimpsest {

/// Seconds of a collective or a SEND. Empty: the job's links say.
using LinkSeconds = std::function<double(const Op& op, const Job& job)>;

/// `plans`: of the pipeline ranks. Throws PlanError as simulate() does.
PlanReport simulate_lockstep(const Plans& plans, const Job& job, const LinkSeconds& seconds = {});

} // namespace palimpsest
