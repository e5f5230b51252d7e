#pragma once

// The plans of a run: from the measured costs and the config's memory techniques to verified plans.
//
//   PlanBook book(config, cost, mesh, links, {.bytes = int64_t{8} << 30});
//   const PlannedStep& step = *book.plan(4);        // of a step with 4 micro-batches
//   book.report(4).peak(TierId::kDevice);            // at most 8 GiB

#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/engine/trainer.h>
#include <palimpsest/core/plan/plan_pass.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/search.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace palimpsest {

/// What a rank's peak on the device consists of: parameters, gradients, optimizer, activations,
/// workspace, in this order.
std::array<std::pair<std::string_view, int64_t>, 5> peak_parts(const RankReport& rank);

/// "activations 300 MiB, parameters 180 MiB": the same as text, the largest first.
std::string largest_parts(const RankReport& rank);

/// What a rank may hold on the device.
struct DeviceBudget {
  std::optional<int64_t> bytes{}; ///< unset: no bound
  int64_t already_held = 0; ///< by what is there before the states and outlives every step
};

/// The change of the config that helps where one micro-batch of so many samples does not even let
/// itself be measured, before there is anything to plan.
std::string advice_on_measuring(int64_t micro_batch, const RunConfig& config);

class PlanBook {
 public:
  /// `micro_batch`: samples of the largest one, for advice. Of the budget a step's samples are
  /// taken, which the run loads before the plan begins, and a small share for what plans do not
  /// count. UserError where the policy does not fit the model. Equal arguments on all ranks give
  /// equal plans.
  PlanBook(
      const RunConfig& config,
      ModelCost cost,
      const Mesh& mesh = {},
      const LinkCosts& links = {},
      const DeviceBudget& budget = {},
      int64_t micro_batch = 1);

  /// Whether the budget has room for parameters and optimizer states; where not, no plan fits.
  bool states_fit() const;
  /// Of such a step if nothing ran again: none is faster.
  double least_seconds(int micro_batches) const;

  /// Composed and verified once for each number of micro-batches. InfeasibleBudget
  /// (memory/planners/planner.h) where no plan fits: names the least budget that has one and what
  /// it consists of; advice() knows what would help.
  std::shared_ptr<const PlannedStep> plan(int micro_batches);
  const PlanReport& report(int micro_batches);
  /// What such a step would be if its recomputation were decided so.
  PlanReport report_with(int micro_batches, const Segments& segments) const;
  /// What ranks must agree on before they run it (core/plan/signature.h).
  uint64_t signature(int micro_batches);
  /// What is kept and what runs again.
  const StepChoice& choice(int micro_batches);

  /// Evaluates one micro-batch beside a run's states: forwards alone. Composed, verified and within
  /// the budget as a step's is, or InfeasibleBudget.
  struct Evaluation {
    int64_t samples = 0; ///< at most, of the micro-batch
    bool prefetches = true;
    std::shared_ptr<const PlannedStep> planned;
    PlanReport report;
    uint64_t signature = 0; ///< as signature()
  };
  const Evaluation& evaluation();
  /// Makes its next tighter plan: without prefetching, then of half as many samples (for which the
  /// measured costs are an estimate). False, and all is as before, where there is none.
  bool tighten_evaluation();
  /// As advice().
  std::string evaluation_advice() const;

  /// Lowers the budget below what the plan of such a step promises, by `excess` bytes that it was
  /// found to miss and at least by a sixteenth part. False, and all is as before, where the
  /// policy is fixed or nothing fits.
  bool tighten(int micro_batches, int64_t excess);

  /// Takes costs that were measured since, agreed on by all ranks. True where the plan of such a step
  /// changed: another one is predicted to be faster by more than a twentieth.
  bool refine(int micro_batches, ModelCost cost);

  /// The one change of the config that would lower the peak of such a step most, in words.
  std::string advice(int micro_batches) const;

  const ModelCost& cost() const {
    return cost_;
  }
  std::optional<int64_t> budget() const {
    return budget_;
  }

 private:
  struct Entry {
    std::shared_ptr<const PlannedStep> planned;
    PlanReport report;
    uint64_t signature = 0;
    StepChoice choice;
  };
  struct Composed {
    Plans plans;
    PlanReport report;
  };
  Entry& entry(int micro_batches);
  Placement placement() const;
  /// What a plan may count (core/plan/device_room.h).
  int64_t room() const;
  StepChoice choose(const Job& job) const;
  Job job(
      int micro_batches,
      const ModelCost& cost,
      const Placement& placement,
      bool training = true) const;
  /// `window`: bytes of prefetching; unset: as the config says.
  Plans plans_of(
      const Job& job,
      const Segments& segments,
      std::optional<int64_t> window = std::nullopt) const;
  Composed compose_step(
      const Job& job,
      const Segments& segments,
      std::optional<int64_t> window = std::nullopt) const;
  Evaluation compose_evaluation(int64_t samples, bool prefetches) const;
  Job evaluation_job(int64_t samples, const Placement& placement) const;
  Evaluate evaluator(const Job& job) const;
  [[noreturn]] void refuse(const Job& job, const StepChoice& least) const;

  RunConfig config_;
  ModelCost cost_;
  Mesh mesh_;
  LinkCosts links_;
  std::optional<int64_t> budget_;
  int64_t already_held_;
  int64_t micro_batch_;
  std::optional<int64_t> prefetch_; // bytes; unset: what kPrefetchedBlocks need
  std::optional<Segments> fixed_; // what a policy decided that needs no budget
  std::map<int, Entry> entries_;
  std::optional<Evaluation> evaluation_;
};

} // namespace palimpsest
