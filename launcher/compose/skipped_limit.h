#pragma once

// Ends a run, on all ranks, that gets no further: too many steps in a row whose loss or gradient is
// not finite, or a loss scale that cannot shrink any more.
//
//   SkippedLimit limit(config, trainer, ranks);
//   observers.insert(observers.begin(), &limit);     // before the step is saved

#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/engine/trainer.h>
#include <palimpsest/launcher/compose/ranks.h>

#include <cstdint>

namespace palimpsest {

class SkippedLimit final : public Observer {
 public:
  /// The trainer and the ranks outlive it.
  SkippedLimit(const RunConfig& config, const Trainer& trainer, Ranks& ranks);

  /// EnvironmentError, the same on all ranks. Gradients that overflow while the loss's scale adapts
  /// to them are what it is for, and not counted as long as the loss is finite.
  void step_end(const StepRecord& record) override;

 private:
  int64_t most_;
  const Trainer& trainer_;
  Ranks& ranks_;
  bool adapts_; // the scale of the loss
  int64_t in_a_row_ = 0;
};

} // namespace palimpsest
