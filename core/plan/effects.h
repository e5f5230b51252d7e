#pragma once

// The vocabulary table: what each operation reads, creates, adds to, changes, spends and frees.
//
//   for (const Effect& effect : effects(op, job)) { ... }
//
// The verifier, the offload pass and the drop pass know operations only through this. Only DROP and
// RELEASE free.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/op.h>

#include <string>
#include <vector>

namespace palimpsest {

enum class Use : uint8_t {
  kReads, ///< must be live
  kCreates, ///< must not be live
  kAdds, ///< accumulates: begins the slot where it is not live
  kChanges, ///< in place, must be live
  kSpends, ///< read for the last time: afterwards only DROP may touch it
  kFrees,
};

struct Effect {
  Place place{};
  Use use = Use::kReads;

  bool operator==(const Effect&) const = default;
};

/// A rule that a plan violates; names rank, operation and slot.
class PlanError : public Error {
 public:
  explicit PlanError(const std::string& message) : Error(message, 70) {}
};

/// In the order of `Use`. Throws PlanError for a block, unit, slot, micro-batch or peer that the
/// job does not have.
std::vector<Effect> effects(const Op& op, const Job& job);

/// The same into a vector that is cleared first, for loops that must not allocate.
void effects(const Op& op, const Job& job, std::vector<Effect>& out);

} // namespace palimpsest
