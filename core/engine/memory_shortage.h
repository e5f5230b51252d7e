#pragma once

// An operation of a plan that did not get the memory it asked for.
//
//   if (outcome.shortage) {
//     throw EnvironmentError("{}", describe(*outcome.shortage, job, memory.name()));
//   }

#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/op.h>

#include <string>

namespace palimpsest {

struct MemoryShortage {
  size_t index = 0; ///< of the operation in the plan
  Op op{};
  RefusedAllocation refused{}; ///< all 0 where a library was refused memory that is not tracked
};

/// "FORWARD of layers.3.mlp, micro-batch 1".
std::string describe(const Op& op, const Job& job);

/// "rank 0: out of memory in FORWARD of layers.3.mlp, micro-batch 1: 24 MiB wanted, 480 MiB of at
/// most 500 MiB held: activations 300 MiB, parameters 180 MiB". `who`: the rank.
std::string describe(const MemoryShortage& shortage, const Job& job, const std::string& who);

/// "activations 300 MiB, parameters 180 MiB": what holds most, the largest first.
std::string largest_holders(const RefusedAllocation& refused);

} // namespace palimpsest
