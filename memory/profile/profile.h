#pragma once

// What a chain costs on this device, measured: each distinct block runs in each of its ways on a
// micro-batch of the real size, and its bytes, transients and seconds become the plan's ModelCost.
//
//   ModelCost cost = profile(chain, largest_micro_batch, memory, {.moment_count = 2});
//
// Parameters need not be there: while a block is measured, units that are not bound get zeros.

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/plan/cost_model.h>

namespace palimpsest {

struct ProfileOptions {
  int moment_count = 0; // fp32 moments of a trainable unit's optimizer
  int repeats = 2; // the first run of a block also compiles its kernels; the fastest counts
};

/// `sample` is a micro-batch of the largest size. The chain's units end as they were.
ModelCost profile(
    Chain& chain,
    const MicroBatch& sample,
    MemoryContext& memory,
    const ProfileOptions& options);

} // namespace palimpsest
