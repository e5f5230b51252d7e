#pragma once

// What a run writes of its steps.
//
//   for (const auto& log : open_logs(run)) { observers.push_back(log.get()); }

#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/launcher/compose/run.h>

#include <memory>
#include <vector>

namespace palimpsest {

/// metrics.jsonl and, unless logging.tensorboard is false, event files in tensorboard/, both in the
/// output folder. They go on after the run's position and drop what they hold of later steps. For the
/// rank that leads.
std::vector<std::unique_ptr<Observer>> open_logs(Run& run);

} // namespace palimpsest
