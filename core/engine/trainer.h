#pragma once

// A run, step by step: takes the micro-batches, settles with the other ranks the one denominator
// and whether to stop, runs the plan, reports.
//
//   Trainer trainer(executor, plan_for, source, memory, {.seed = 42, .learning_rate = schedule});
//   trainer.run(observers);

#include <palimpsest/core/contracts/batch_source.h>
#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/engine/executor.h>
#include <palimpsest/core/engine/loss_scaler.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace palimpsest {

/// A plan and the job it was made for.
struct PlannedStep {
  Job job;
  StepPlan plan;
};

/// How far a run has come.
struct TrainingPosition {
  int64_t step = 0; // steps done, skipped ones included
  int64_t updates = 0;
  std::optional<LossScale> loss_scale = {}; // where the loss is scaled
};

/// The plan of a step with so many micro-batches. An epoch's last window may have fewer than the
/// others.
using PlanFor = std::function<std::shared_ptr<const PlannedStep>(int micro_batches)>;

/// Memory ran out in a step of so many micro-batches: on this rank as `shortage` says, or only on
/// others. All ranks call it; afterwards the same step runs again by the plan that there is then.
/// Throws, on all ranks, where nothing is left to try.
using Replan =
    std::function<void(int micro_batches, const std::optional<MemoryShortage>& shortage)>;

class Trainer {
 public:
  struct Settings {
    uint64_t seed = 0;
    std::function<double(double norm)> clip; // see StepInputs
    /// The learning rate of an update, from the number of updates before it.
    std::function<double(int64_t updates)> learning_rate;
    TrainingPosition begin = {};
    /// For fp16; empty: none. A scale in `begin` is gone on from.
    std::optional<LossScaling> loss_scaling = {};
    /// The ranks that share a step's samples; null: there is one. Outlives the trainer.
    Communicator* ranks = nullptr;
    /// Asked before each step; where one rank's answer is yes, all stop there. Empty: never.
    std::function<bool()> stop_requested = {};
    /// Empty: a step without the memory it needs is an EnvironmentError.
    Replan replan = {};
  };

  /// All references outlive the trainer.
  Trainer(
      Executor& executor,
      PlanFor plan_for,
      BatchSource& source,
      MemoryContext& memory,
      Settings settings);

  /// Runs the source's remaining steps; every observer sees each step's record. False where it was
  /// asked to stop before the last one.
  bool run(const std::vector<Observer*>& observers);

  /// The next step. One without a single target, or whose loss or gradient is not finite, changes
  /// nothing and is marked as skipped; the learning rate then does not move.
  StepRecord step();

  TrainingPosition position() const;
  /// Where the loss is scaled.
  const std::optional<LossScaler>& scaler() const {
    return scaler_;
  }

 private:
  bool stop_agreed() const;
  /// Runs a plan on the inputs, and again while memory runs out.
  StepOutcome run_plan(const StepInputs& inputs);
  /// The same on all ranks: sums and maxima over them.
  std::vector<int64_t> over_ranks(std::vector<int64_t> numbers, ReduceOp op) const;

  Executor& executor_;
  PlanFor plan_for_;
  BatchSource& source_;
  MemoryContext& memory_;
  Settings settings_;
  TrainingPosition position_; // but for the loss's scale
  std::optional<LossScaler> scaler_;
};

} // namespace palimpsest
