#pragma once

// The plans of a run: from the measured costs and the config's memory techniques to verified plans.
//
//   PlanBook book(config, cost);
//   const PlannedStep& step = *book.plan(4);        // of a step with 4 micro-batches
//   book.report(4).peak(TierId::kDevice);

#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/engine/trainer.h>
#include <palimpsest/core/plan/plan_pass.h>
#include <palimpsest/core/plan/simulate.h>

#include <map>
#include <memory>
#include <optional>

namespace palimpsest {

class PlanBook {
 public:
  /// UserError where the policy does not fit the model. Equal arguments on all ranks give equal
  /// plans.
  PlanBook(
      const RunConfig& config,
      ModelCost cost,
      const Mesh& mesh = {},
      const LinkCosts& links = {});

  /// Composed and verified once for each number of micro-batches.
  std::shared_ptr<const PlannedStep> plan(int micro_batches);
  const PlanReport& report(int micro_batches);
  /// What such a step would be if its recomputation were decided so.
  PlanReport report_with(int micro_batches, const Segments& segments) const;
  /// What ranks must agree on before they run it (core/plan/signature.h).
  uint64_t signature(int micro_batches);

  const ModelCost& cost() const {
    return cost_;
  }
  const Segments& segments() const {
    return segments_;
  }

 private:
  struct Entry {
    std::shared_ptr<const PlannedStep> planned;
    PlanReport report;
    uint64_t signature = 0;
  };
  Entry& entry(int micro_batches);
  Entry make(int micro_batches, const Segments& segments) const;

  ModelCost cost_;
  Mesh mesh_;
  LinkCosts links_;
  Placement placement_;
  bool reproducible_;
  std::optional<int64_t> prefetch_; // bytes; unset: what kPrefetchedBlocks need
  Segments segments_;
  std::map<int, Entry> entries_;
};

} // namespace palimpsest
