#pragma once

// What a chain costs on this device, measured: each distinct block runs in each of its ways on a
// micro-batch of the real size, and its bytes, transients and seconds become the plan's ModelCost.
//
//   ModelCost cost = profile(chain, largest_micro_batch, memory, {.moment_count = 2});
//
// Parameters need not be there: while a block is measured, units that are not bound get zeros.

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/contracts/precision.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/plan/cost_model.h>

#include <functional>

namespace palimpsest {

struct ProfileOptions {
  int moment_count = 0; // of a trainable unit's optimizer
  StatePrecision precision = {};
  /// Of each block's measurement, after one that compiles its kernels; medians count. None begins
  /// after `seconds_per_block`: then there are fewer, and of a block that takes longer at once the
  /// first one counts.
  int repeats = 5;
  double seconds_per_block = 1.5;
  /// Called before each block of the chain: on all ranks alike, so it may talk to the others. What
  /// it throws ends the measuring.
  std::function<void()> before_block = {};
  /// The same before each measured call, of which ranks make different numbers.
  std::function<void()> before_call = {};
};

/// `sample` is a micro-batch of the largest size. The chain's units end as they were.
ModelCost profile(
    Chain& chain,
    const MicroBatch& sample,
    MemoryContext& memory,
    const ProfileOptions& options);

} // namespace palimpsest
