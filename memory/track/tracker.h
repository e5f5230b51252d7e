#pragma once

// Measures what a plan's operations really hold: the highest total of tracked bytes during each
// one.
//
//   MemoryTracker tracker(memory);
//   Executor executor(chain, {..., .observers = {&tracker}});
//   tracker.ops()[17].peak;                     // beside PlanReport::ranks[0].device_bytes[17]

#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/device/memory_context.h>

#include <cstdint>
#include <vector>

namespace palimpsest {

class MemoryTracker final : public Observer {
 public:
  struct OpBytes {
    int64_t peak = 0; // highest total during the operation, its transients included
    int64_t live_after = 0;
  };

  explicit MemoryTracker(MemoryContext& memory) : memory_(memory) {}

  void op_begin(size_t index, const Op& op) override;
  void op_end(size_t index, const Op& op) override;

  /// Of the last step, by operation.
  const std::vector<OpBytes>& ops() const {
    return ops_;
  }
  /// The highest of the last step.
  int64_t peak() const;

 private:
  MemoryContext& memory_;
  std::vector<OpBytes> ops_;
};

} // namespace palimpsest
