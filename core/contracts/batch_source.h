#pragma once

// Where a step's micro-batches come from.

#include <palimpsest/core/contracts/micro_batch.h>

#include <cstdint>
#include <optional>

namespace palimpsest {

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Optimizer steps of the whole run.
  virtual int64_t step_count() const = 0;
  /// The micro-batches of step `step` (from 0); a pure function of it, so a step can be thrown away
  /// and run again.
  virtual StepBatch load(int64_t step) = 0;
};

} // namespace palimpsest
