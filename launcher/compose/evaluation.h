#pragma once

// Held-out loss: measured while a run trains, the model of the lowest one kept, the run ended where it
// gets no lower.
//
//   HeldOut held_out(held_out_batches(std::move(data.validation), micro_batch, groups), parts);
//   held_out.measure(/*step=*/300)->loss;
//   Evaluations evaluations(held_out, settings, state, observers, keep);   // an observer of the run
//   if (evaluations.ended()) { ... }
//
// An evaluation is a plan of its own (planning.h) over samples of its own, by an executor of its own
// that no observer of steps sees: a run's numbers are the same bits with and without.

#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/data/step_batches.h>
#include <palimpsest/core/engine/evaluator.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/core/optim/sgd.h>
#include <palimpsest/launcher/compose/model.h>
#include <palimpsest/launcher/compose/planning.h>
#include <palimpsest/launcher/compose/ranks.h>
#include <palimpsest/parallel/mesh/mesh_groups.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

/// The first `most` samples of what is held out, or all; null where nothing is. UserError where none
/// of them has a target.
std::unique_ptr<SampleSource> held_out_samples(
    std::unique_ptr<SampleSource> all,
    std::optional<int64_t> most);

/// All samples once and in order: of each step, every rank takes one micro-batch of at most
/// `micro_batch` samples, an empty one where there are not enough.
std::unique_ptr<StepBatches> held_out_batches(
    std::unique_ptr<SampleSource> samples,
    int64_t micro_batch,
    const MeshGroups& groups);

/// Samples and the model that they are tried on.
class HeldOut {
 public:
  /// All outlive it.
  struct Parts {
    Model& model;
    ParamStore& store;
    MemoryContext& memory;
    Ranks& ranks;
    const MeshGroups& groups;
    PlanBook& plans;
  };

  /// `batches` have at most as many samples as the plans were made for.
  HeldOut(std::unique_ptr<StepBatches> batches, const Parts& parts);

  /// Collective: by the parameters as they are. Nothing, on all ranks, where one of them is asked to
  /// stop before the last micro-batch. Where memory runs out it begins anew by a tighter plan, and
  /// `observers` are told; EnvironmentError on all ranks where there is none.
  std::optional<EvaluationRecord> measure(
      int64_t step,
      const std::vector<Observer*>& observers = {},
      const std::function<bool()>& stop_requested = {});

 private:
  /// Takes the plan that there is.
  void take_plan();

  Parts parts_;
  std::unique_ptr<StepBatches> batches_;
  Sgd optimizer_{0}; // an executor has one; it is never asked
  FoldedNorm norm_{2};
  Executor executor_;
  std::optional<Evaluator> evaluator_;
};

/// What the evaluations so far decide by.
struct EvaluationState {
  int64_t samples = 0; ///< that the losses are of
  int64_t best_step = 0; ///< 0: none yet
  double best_loss = std::numeric_limits<double>::infinity();
  double counted_loss = std::numeric_limits<double>::infinity(); ///< the last that counted as lower
  int64_t not_lower = 0; ///< evaluations in a row since
  int64_t updates = 0; ///< of the parameters, before the last evaluation
  bool dropped = false; ///< the last one that was due: the run was asked to stop

  /// Takes a loss; true where it is the lowest so far. One counts as lower where it is at least
  /// `min_improvement` below the last that did; a NaN never is. Without an update since the last one
  /// it counts neither way.
  bool add(int64_t step, int64_t updates, double loss, double min_improvement);

  /// Whether so many in a row did not count as lower; unset: never.
  bool used_up(std::optional<int64_t> patience) const;

  /// As numbers by name ("evaluation.best_loss"), exactly, for a checkpoint; none before the first
  /// evaluation.
  std::map<std::string, double> numbers() const;
  /// Their inverse. Afresh, but for what is due, where there are none or of another number of samples.
  static EvaluationState from(const std::map<std::string, double>& numbers, int64_t samples);

  bool operator==(const EvaluationState&) const = default;
};

/// Evaluates after every so many steps and after the last one; tells the observers.
class Evaluations final : public Observer {
 public:
  struct Settings {
    std::optional<int64_t> every = std::nullopt; ///< unset: at the end only
    std::optional<int64_t> patience = std::nullopt;
    double min_improvement = 0;
    TrainingPosition done = {}; ///< what the run goes on after
    int64_t last_step = 0; ///< of the run
    std::function<bool()> stop_requested = {}; ///< of this rank; empty: never
  };
  static Settings settings(const RunConfig::Evaluation& config);

  /// `keep` is called, on all ranks, where a loss is the lowest so far; it may be empty. Tells
  /// where a run goes on whose patience is used up. All references outlive this.
  Evaluations(
      HeldOut& held_out,
      const Settings& settings,
      EvaluationState& state,
      const std::vector<Observer*>& observers,
      std::function<void()> keep);

  /// Collective where an evaluation is due. One that a request to stop interrupts is dropped: the
  /// state says so.
  void step_end(const StepRecord& record) override;

  /// Does what the run that this one goes on from dropped. Collective.
  void catch_up();

  /// Whether patience is used up: the same on all ranks.
  bool ended() const;

 private:
  void evaluate(int64_t step);
  void tell_end() const;
  void tell(const std::string& text) const;

  HeldOut& held_out_;
  Settings settings_;
  EvaluationState& state_;
  const std::vector<Observer*>& observers_;
  std::function<void()> keep_;
  int64_t updates_;
};

} // namespace palimpsest
