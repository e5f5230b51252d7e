#pragma once

// An operation of a plan that did not get the memory it asked for.
//
//   if (outcome.shortage) {
//     throw EnvironmentError("{}", describe(*outcome.shortage, job));
//   }

#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/op.h>

#include <functional>
#include <string>

namespace palimpsest {

struct MemoryShortage {
  size_t index = 0; ///< of the operation in the plan
  Op op{};
  RefusedAllocation refused{}; ///< bytes 0: a library was refused memory that is not tracked
};

/// What was refused since the last call; where that is not tracked, what is held now.
RefusedAllocation latest_refusal(MemoryContext& memory);

/// "FORWARD of layers.3.mlp, micro-batch 1".
std::string describe(const Op& op, const Job& job);

/// "out of memory `doing`: 24 MiB wanted, 480 MiB of at most 500 MiB held: activations 300 MiB,
/// parameters 180 MiB", the largest holders first; where it is not known what was wanted, "a library
/// was refused the memory it needs, 480 MiB held: ...".
std::string describe(const RefusedAllocation& refused, const std::string& doing);

/// "out of memory in FORWARD of layers.3.mlp, micro-batch 1: ...".
std::string describe(const MemoryShortage& shortage, const Job& job);

/// Runs a part that is outside of any plan: memory that runs out in it, tracked or not, is an
/// EnvironmentError that says `doing` ("reading weights") and what is held.
void name_shortages(
    MemoryContext& memory,
    const std::string& doing,
    const std::function<void()>& part);

} // namespace palimpsest
