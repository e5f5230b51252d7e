#pragma once

// When each operation of a full step really ran, and the most bytes that were tracked during it.
//
//   StepTrace trace(memory, run.micro_batches());
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

/// Keeps the last step of `micro_batches` that was not skipped; an epoch's last step may have fewer.
class StepTrace final : public Observer {
 public:
  StepTrace(MemoryContext& memory, int micro_batches)
      : memory_(memory), micro_batches_(micro_batches) {}

  void op_begin(size_t index, const Op& op) override;
  void op_end(size_t index, const Op& op) override;
  void step_end(const StepRecord& record) override;

  /// One for each operation of the plan that the step ran.
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
  int micro_batches_;
  int loads_ = 0; // of the step under way
  std::chrono::steady_clock::time_point start_;
  std::vector<TracedOp> ops_;
  std::vector<TracedOp> last_;
  StepRecord record_;
};

} // namespace palimpsest
