#pragma once

// A plan for a chain as a step plan: what simulate() says of it.
//
//   const ChainReplay replay = replay_chain(chain, segments);
//   replay.makespan, replay.peak                       // those of run_chain(), by another way
//
// A stage becomes two blocks: one that computes, and one that only reads its output, so that a
// rerun writes the output even where no later stage of its segment reads it, as the model of a chain
// without spares_unread counts it. A tape holds what it has beside the output; the output is charged to BACKWARD, which a
// chain's model has hold it to the end. Of the states only gradients weigh something.

#include <palimpsest/core/plan/cost_chain.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <cstdint>

namespace palimpsest {

struct ChainReplay {
  StepPlan plan; ///< block 2 l computes stage l
  double makespan = 0; ///< seconds
  int64_t peak = 0; ///< bytes
};

/// `segments`: of stages. Throws PlanError where the plan breaks a rule.
ChainReplay replay_chain(const CostChain& chain, const Segments& segments);

/// The job that it replays on.
Job replay_job(const CostChain& chain);

} // namespace palimpsest
