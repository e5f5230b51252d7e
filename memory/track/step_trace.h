#pragma once

// When each operation of a full step really ran, and the most bytes that were tracked during it.
//
//   StepTrace trace(memory, plan.size());
//   run.train({&trace});
//   trace.last()[17].peak_bytes;                // empty where no full step ran to its end

#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/device/memory_context.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace palimpsest {

/// Of one operation. Seconds are from the beginning of the step's first one; of an operation whose
/// work goes on beside the rank's own thread, what that thread spent on it.
struct TracedOp {
  double begin_s = 0;
  double end_s = 0;
  int64_t peak_bytes = 0;
};

/// Keeps the last step that ran `full` operations: a step of fewer micro-batches or one that was
/// skipped ran fewer, and is passed over.
class StepTrace final : public Observer {
 public:
  StepTrace(MemoryContext& memory, size_t full) : memory_(memory), full_(full) {}

  void op_begin(size_t index, const Op& op) override;
  void op_end(size_t index, const Op& op) override;
  void step_end(const StepRecord& record) override;

  const std::vector<TracedOp>& last() const {
    return last_;
  }
  /// The step that last() is of.
  const StepRecord& record() const {
    return record_;
  }

 private:
  double now() const;

  MemoryContext& memory_;
  size_t full_;
  std::chrono::steady_clock::time_point start_;
  std::vector<TracedOp> ops_; // of the step under way
  std::vector<TracedOp> last_;
  StepRecord record_;
};

} // namespace palimpsest
