#pragma once

// The loss on held-out samples, by the parameters as they are now.
//
//   Evaluator evaluator(executor, plan, held_out, memory, groups.data);
//   evaluator.evaluate().mean();           // sum of token losses / targets, the same on all ranks
//
// Only forwards run, without tapes, dropout or gradients: nothing that a training step uses changes.

#include <palimpsest/core/contracts/batch_source.h>
#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/engine/executor.h>
#include <palimpsest/core/engine/trainer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace palimpsest {

/// Over all samples and ranks.
struct HeldOutLoss {
  /// How it ended, the same on all ranks: where not complete, there is no loss.
  enum class End { kComplete, kStopped, kExhausted };
  End end = End::kComplete;
  std::optional<MemoryShortage> shortage = {}; ///< that this rank met, where memory ran out
  double sum = 0; ///< of token losses, folded in the order of global micro-batches
  int64_t targets = 0;

  /// NaN without a target.
  double mean() const {
    return sum / static_cast<double>(targets);
  }
};

class Evaluator {
 public:
  /// `planned`: of one micro-batch, for a job that is not training. `source`: each step is equally
  /// many micro-batches on every rank, empty ones where there are not enough samples. `ranks`: those that
  /// share a step's samples, in the order in which they take them; null: there is one. All references
  /// outlive the evaluator.
  Evaluator(
      Executor& executor,
      std::shared_ptr<const PlannedStep> planned,
      BatchSource& source,
      MemoryContext& memory,
      Communicator* ranks);

  /// Collective: all of the source's samples once. Sum and targets have the same bits on all ranks,
  /// and on any number of them that cut the samples into the same micro-batches. Between two
  /// micro-batches the ranks agree whether to go on: it ends where one is asked to stop, or has run
  /// out of memory in a micro-batch or while it loaded samples.
  HeldOutLoss evaluate(const std::function<bool()>& stop_requested = {});

 private:
  using End = HeldOutLoss::End;
  /// Nothing where there is a shortage, or else memory runs out in it.
  StepBatch load(int64_t step, std::optional<MemoryShortage>& shortage) const;
  /// Of what the ranks say.
  End gravest(End mine) const;
  /// Everybody's numbers, equally many, one rank after the other.
  std::vector<double> of_all_ranks(const std::vector<double>& mine) const;

  Executor& executor_;
  std::shared_ptr<const PlannedStep> planned_;
  BatchSource& source_;
  MemoryContext& memory_;
  Communicator* ranks_;
};

} // namespace palimpsest
