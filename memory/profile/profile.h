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

namespace palimpsest {

struct ProfileOptions {
  int moment_count = 0; // of a trainable unit's optimizer
  StatePrecision precision = {};
  /// Of each block's measurement, after one that compiles its kernels; medians count. Of a block
  /// that takes long, fewer, but at least one.
  int repeats = 5;
  double seconds_per_block = 1.5;
};

/// `sample` is a micro-batch of the largest size. The chain's units end as they were.
ModelCost profile(
    Chain& chain,
    const MicroBatch& sample,
    MemoryContext& memory,
    const ProfileOptions& options);

} // namespace palimpsest
