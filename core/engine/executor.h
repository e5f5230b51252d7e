#pragma once

// Runs a plan: a switch over its operations, and the one place where services meet.
//
//   Executor executor(chain, {.params = store, .optimizer = adamw, .norm = norm, .memory = memory});
//   StepOutcome outcome = executor.run(plan, job, {.batches = batches, .loss_scale = 1.0 / targets});
//
// An operation waits for an operand only when it uses it; a DROP also for outstanding readers. If
// anything throws before AGREE, the step's slots are freed and nothing persistent has changed;
// after it, units may be updated or not, and the run cannot go on.
//
// Where memory runs out before AGREE nothing is thrown: the rank stops computing but still issues
// what the others wait for, so that all learn it at AGREE and may run the step again.

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/contracts/optimizer.h>
#include <palimpsest/core/contracts/slot_store.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/engine/memory_shortage.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <functional>
#include <optional>
#include <vector>

namespace palimpsest {

struct StepInputs {
  const StepBatch& batches; // one for each micro-batch of the job
  uint64_t seed = 0;
  uint64_t step = 0; // from 0
  double loss_scale = 1; // 1 / targets of the whole step
  double gradient_scale = 1; // the loss is scaled by it too, and gradients are scaled back
  double learning_rate = 0;
  int64_t updates = 1; // of the optimizer, this one included
  std::function<double(double norm)> clip = {}; // the gradients' factor; empty: 1
};

struct StepOutcome {
  double loss_sum = 0; // over all targets, folded in the order of micro-batches
  double grad_norm = 0; // scaled back, before clipping; 0 in evaluation
  bool finite = true; // where not, nothing persistent has changed
  /// Memory ran out on some rank, on this one in `shortage`: nothing persistent has changed, and the
  /// step may be run again.
  bool exhausted = false;
  std::optional<MemoryShortage> shortage = {};
  int64_t forwards = 0; // block executions, the terminal block's included
  int64_t backwards = 0;
};

class Executor {
 public:
  /// What a plan's operations call. The optional ones are needed only by plans that use them; all
  /// outlive the executor.
  struct Services {
    ParamStore& params;
    const Optimizer& optimizer;
    const GradientNorm& norm;
    MemoryContext& memory;
    SlotStore* slots = nullptr; // STASH, FETCH
    PeerChannel* peers = nullptr; // SEND, RECV
    Agreer* agreer = nullptr; // AGREE of several ranks
    std::vector<Observer*> observers = {};
  };

  Executor(Chain& chain, Services services);

  /// Runs one optimizer step, or an evaluation where the job is not training. `pipeline_rank` is
  /// the rank whose plan this is.
  StepOutcome run(
      const StepPlan& plan,
      const Job& job,
      const StepInputs& inputs,
      int pipeline_rank = 0);

 private:
  Chain& chain_;
  Services services_;
};

} // namespace palimpsest
