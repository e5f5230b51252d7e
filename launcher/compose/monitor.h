#pragma once

// Watches a run and plans it anew where that pays: compares what steps take with what was
// predicted, and the memory that the machine has left with what the plan still wants.
//
//   Monitor monitor(ranks, plans, memory, {.micro_batches = 4, .watch_memory = true}, observers);
//   executor observers and step observers: &monitor
//
// It looks rarely (after steps 3, 10, 30, 100, ... of the run), changes a plan only for a step that is
// predicted to be faster by a twentieth, and lowers a budget but never raises it: so plans do not
// swing. A plan changes no number of the run.

#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/launcher/compose/planning.h>
#include <palimpsest/launcher/compose/ranks.h>
#include <palimpsest/memory/track/step_trace.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace palimpsest {

class Monitor final : public Observer {
 public:
  struct Settings {
    int micro_batches = 1; ///< of the steps that are looked at
    bool watch_memory = false; ///< the budget is what the machine had free, not the user's
    std::function<int64_t()> available = {}; ///< bytes that the machine has left; for watch_memory
  };

  /// `observers` are told. All outlive it.
  Monitor(
      Ranks& ranks,
      PlanBook& plans,
      MemoryContext& memory,
      Settings settings,
      const std::vector<Observer*>& observers);

  void op_begin(size_t index, const Op& op) override;
  void op_end(size_t index, const Op& op) override;
  /// Collective, where it is a step after which it looks.
  void step_end(const StepRecord& record) override;

 private:
  void refine();
  void fit_to_free_memory();
  void tell(const std::string& text) const;

  Ranks& ranks_;
  PlanBook& plans_;
  MemoryContext& memory_;
  Settings settings_;
  const std::vector<Observer*>& observers_;
  StepTrace trace_;
  int64_t steps_ = 0; // of this run
  int64_t next_look_ = 3;
};

} // namespace palimpsest
