#pragma once

// What a run will do and hold, as tables for the terminal.
//
//   std::cout << describe_run(run) << describe_memory(run.full_report());

#include <palimpsest/core/plan/cost_model.h>
#include <palimpsest/core/plan/simulate.h>

#include <string>

namespace palimpsest {

class Run;

/// Model, data, batch, policy; one line each, and the notes on the data.
std::string describe_run(Run& run);

/// The predicted peak on the device by category. The categories are those at the peak, so they add
/// up to it.
std::string describe_memory(const PlanReport& report);

/// Executed blocks, FLOPs with the recompute share, and the closed forms for a uniform chain beside
/// what the plan has.
std::string describe_work(const PlanReport& report, const ModelCost& cost, int micro_batches);

} // namespace palimpsest
