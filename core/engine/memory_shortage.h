#pragma once

// Work that did not get the memory it asked for: an operation of a plan, mostly.
//
//   if (outcome.shortage) {
//     throw EnvironmentError("{}", describe(*outcome.shortage));
//   }

#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/op.h>

#include <functional>
#include <optional>
#include <string>

namespace palimpsest {

struct MemoryShortage {
  std::string doing; ///< "in FORWARD of layers.3.mlp, micro-batch 1", "while loading samples"
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
std::string describe(const MemoryShortage& shortage);

/// Runs a part that is outside of any plan; what was refused where memory ran out in it, tracked or
/// not.
std::optional<RefusedAllocation> refusal_in(
    MemoryContext& memory,
    const std::function<void()>& part);

/// The same, but throws an EnvironmentError that says `doing` ("reading weights"), what is held and,
/// where there is one, the `advice`.
void name_shortages(
    MemoryContext& memory,
    const std::string& doing,
    const std::function<void()>& part,
    const std::string& advice = "");

} // namespace palimpsest
