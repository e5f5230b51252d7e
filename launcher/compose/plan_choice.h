#pragma once

// How a run computes its steps, chosen before the first one: the micro-batch, how ranks share states,
// and the plans.
//
//   ChosenPlans chosen = choose_plans({.config = config, .ranks = ranks, ...}, batch, links);
//   chosen.plans.report(4).seconds;         // of the fastest step that was found
//
// Every part is collective and ends alike on all ranks.

#include <palimpsest/core/config/derive.h>
#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/data/step_batches.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/launcher/compose/planning.h>
#include <palimpsest/launcher/compose/ranks.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace palimpsest {

/// What the choice is about; all of it outlives the call.
struct PlannedRun {
  const RunConfig& config;
  Ranks& ranks;
  Chain& chain;
  StepBatches& batches; ///< those that a block is measured with are loaded
  MemoryContext& memory;
  int moment_count = 0; ///< of the optimizer
  bool evaluates = false; ///< whether samples are held out
};

struct ChosenPlans {
  BatchSizes batch;
  RunConfig::Parallel parallel;
  Mesh mesh;
  PlanBook plans;
};

/// Measures the blocks and plans with each micro-batch and each way of sharing states that is left
/// open; the fastest step is taken. Larger micro-batches are tried until one is slower, or too large, or
/// a block takes so long that more samples would gain nothing. `batches` are left in the chosen size.
/// InfeasibleBudget where no plan fits (on several ranks the Error of Ranks::together() with its
/// text); the end of Ranks::end_if_any_asked() where one was asked to stop meanwhile.
ChosenPlans choose_plans(const PlannedRun& run, BatchSizes batch, const LinkCosts& links);

/// Micro-batches of a full step, and of an epoch's last one.
std::vector<int> step_sizes(const StepBatches& batches);

/// EnvironmentError where so many bytes are not available: asking for more would end in the system
/// killing a process of its choice.
void require_memory(int64_t bytes, std::string_view purpose);

} // namespace palimpsest
