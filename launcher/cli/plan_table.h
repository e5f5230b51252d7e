#pragma once

// What a run will do and hold, as tables for the terminal.
//
//   std::cout << describe_run(run) << describe_memory(run.full_report());

#include <palimpsest/core/engine/trainer.h>
#include <palimpsest/core/plan/cost_model.h>
#include <palimpsest/core/plan/simulate.h>

#include <string>
#include <utility>
#include <vector>

namespace palimpsest {

class Run;

/// Model, batch, ranks, policy, and the notes on the data: names and texts.
std::vector<std::pair<std::string, std::string>> run_facts(Run& run);

/// The same, one line each, and the layers' choices.
std::string describe_run(Run& run);

/// The predicted peak on the device by category. The categories are those at the peak, so they add
/// up to it.
std::string describe_memory(const PlanReport& report);

/// How often and how much a rank sends in a step: bytes that it must send at least, whatever the
/// engine. Empty for a single process.
std::string describe_traffic(const PlannedStep& step);

/// Executed blocks, FLOPs with the recompute share, and, where layers are kept or run again as wholes,
/// the closed forms for a uniform chain.
std::string describe_work(Run& run);

} // namespace palimpsest
