#pragma once

// How much of the device's arithmetic a run uses for its model.
//
//   const Utilization mfu = model_utilization(run);   // logging.hardware: h100-80
//   mfu(record);                                      // 0.41; none where no peak is known

#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/launcher/compose/run.h>

#include <functional>
#include <optional>

namespace palimpsest {

/// Of a step that is over.
using Utilization = std::function<std::optional<double>(const StepRecord&)>;

/// Where no peak is known.
inline std::optional<double> unknown_utilization(const StepRecord& /*record*/) {
  return std::nullopt;
}

/// Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B): the operations of this rank's
/// forwards and backwards, without what is recomputed and with rows' padding, over what the device
/// of logging.hardware could do meanwhile at its peak in the compute type. None without that key: a
/// peak is never guessed. UserError where it names no hardware. `run` outlives it.
Utilization model_utilization(Run& run);

} // namespace palimpsest
