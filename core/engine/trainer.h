#pragma once

// A run, step by step: takes the micro-batches, settles the one denominator, runs the plan,
// reports.
//
//   Trainer trainer(executor, plan_for, source, memory, {.seed = 42, .learning_rate = schedule});
//   trainer.run(observers);

#include <palimpsest/core/contracts/batch_source.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/engine/executor.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace palimpsest {

/// A plan and the job it was made for.
struct PlannedStep {
  Job job;
  StepPlan plan;
};

/// The plan of a step with so many micro-batches. An epoch's last window may have fewer than the
/// others.
using PlanFor = std::function<std::shared_ptr<const PlannedStep>(int micro_batches)>;

class Trainer {
 public:
  struct Settings {
    uint64_t seed = 0;
    std::function<double(double norm)> clip; // see StepInputs
    /// The learning rate of an update, from the number of updates before it.
    std::function<double(int64_t updates)> learning_rate;
  };

  /// All references outlive the trainer.
  Trainer(
      Executor& executor,
      PlanFor plan_for,
      BatchSource& source,
      MemoryContext& memory,
      Settings settings);

  /// Runs all steps of the source; every observer sees each step's record.
  void run(const std::vector<Observer*>& observers);

  /// One step. A step without a single target, or whose loss or gradient is not finite, changes
  /// nothing and is marked as skipped; the learning rate then does not move.
  StepRecord step(int64_t step);

  /// Updates so far.
  int64_t updates() const {
    return updates_;
  }

 private:
  Executor& executor_;
  PlanFor plan_for_;
  BatchSource& source_;
  MemoryContext& memory_;
  Settings settings_;
  int64_t updates_ = 0;
};

} // namespace palimpsest
