#pragma once

// What a run does when memory runs out in the middle of a step or an evaluation: all ranks agree on a
// tighter plan, and it runs again.
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

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

/// Collective: the ranks' present plans of such a step issue the same communication; a UserError,
/// the same on all ranks, where they do not.
void require_same_plan(Ranks& ranks, PlanBook& plans, int micro_batches);

/// The same for those of an evaluation.
void require_same_evaluation(Ranks& ranks, PlanBook& plans);

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
  /// The same for an evaluation. Afterwards it takes at most plans.evaluation().samples at a time.
  void replan_evaluation(const std::optional<MemoryShortage>& shortage);

  void step_end(const StepRecord& /*record*/) override {
    tries_ = 0;
  }

 private:
  /// What ran out of memory.
  struct Work {
    std::string name; // "the step"
    std::function<int64_t()> promised; // bytes, by the plan that there is
    std::function<bool(int64_t excess)> tighten;
    std::function<std::string()> advice;
    std::function<void()> compare; // the ranks' plans
  };
  void replan(const Work& work, const std::optional<MemoryShortage>& shortage);
  /// Bytes by which the rank that missed most went beyond its plan's promise.
  int64_t agree_on_excess(int64_t promised, const std::optional<MemoryShortage>& shortage) const;

  Ranks& ranks_;
  PlanBook& plans_;
  MemoryContext& memory_;
  const std::vector<Observer*>& observers_;
  int tries_ = 0; // of the present step or evaluation
};

} // namespace palimpsest
