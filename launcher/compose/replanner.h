#pragma once

// What a run does when memory runs out in the middle of a step: all ranks agree on a tighter plan,
// and the step runs again.
//
//   Replanner replanner(ranks, plans, memory, observers);
//   settings.replan = [&](int micro_batches, const auto& shortage) { replanner.replan(micro_batches, shortage); };
//
// Memory that the plan had promised to leave free may just have been taken by somebody else, so the
// same plan is tried once more; after that, and where the plan had promised too much, the budget is
// lowered by what was measured.

#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/engine/memory_shortage.h>
#include <palimpsest/launcher/compose/planning.h>
#include <palimpsest/launcher/compose/ranks.h>

#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

/// Collective: the ranks' present plans of such a step issue the same communication; a UserError,
/// the same on all ranks, where they do not.
void require_same_plan(Ranks& ranks, PlanBook& plans, int micro_batches);

class Replanner final : public Observer {
 public:
  /// `observers` are told. All outlive it.
  Replanner(
      Ranks& ranks,
      PlanBook& plans,
      MemoryContext& memory,
      const std::vector<Observer*>& observers)
      : ranks_(ranks), plans_(plans), memory_(memory), observers_(observers) {}

  /// See Replan. Throws an EnvironmentError, the same on all ranks, that names rank, operation,
  /// bytes, largest holders and what would help.
  void replan(int micro_batches, const std::optional<MemoryShortage>& shortage);

  void step_end(const StepRecord& /*record*/) override {
    tries_ = 0;
  }

 private:
  /// Bytes by which the rank that missed most went beyond its plan's promise.
  int64_t agree_on_excess(int micro_batches, const std::optional<MemoryShortage>& shortage) const;

  Ranks& ranks_;
  PlanBook& plans_;
  MemoryContext& memory_;
  const std::vector<Observer*>& observers_;
  int tries_ = 0; // of the present step
};

} // namespace palimpsest
