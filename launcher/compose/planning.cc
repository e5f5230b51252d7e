#include <palimpsest/launcher/compose/planning.h>

#include <palimpsest/core/plan/signature.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/memory/recompute/policies.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/gather.h>

#include <limits>
#include <utility>

namespace palimpsest {
namespace {

/// One computes, the next one's parameters arrive, and a rerun of two blocks keeps both for their
/// backward.
constexpr int kPrefetchedBlocks = 3;

Segments decide(const RunConfig::ActivationCheckpointing& settings, const ModelCost& cost) {
  PolicyOptions options;
  if (settings.has_n()) {
    options.n = static_cast<int>(settings.n());
  }
  if (settings.has_segments()) {
    options.segments = static_cast<int>(settings.segments());
  }
  options.recompute.assign(settings.recompute().begin(), settings.recompute().end());
  if (settings.has_count()) {
    options.count = static_cast<int>(settings.count());
  }
  if (settings.has_keep_last_segment()) {
    options.keep_last_segment = settings.keep_last_segment();
  }
  options.kept_tape = parse_tape(settings.tape());
  options.rerun_tape = options.kept_tape;
  return find_policy(settings.policy()).decide(cost, options);
}

} // namespace

PlanBook::PlanBook(
    const RunConfig& config,
    ModelCost cost,
    const Mesh& mesh,
    const LinkCosts& links)
    : cost_(std::move(cost)), mesh_(mesh),
      links_(links), placement_{.zero = static_cast<int>(config.parallel().zero())},
      reproducible_(config.training().reproducible()) {
  if (!config.parallel().reshard_after_forward()) {
    prefetch_ = std::numeric_limits<int64_t>::max();
  } else if (config.parallel().has_prefetch()) {
    prefetch_ = config.parallel().prefetch();
  }
  segments_ = decide(config.activation_checkpointing(), cost_);
}

std::shared_ptr<const PlannedStep> PlanBook::plan(int micro_batches) {
  return entry(micro_batches).planned;
}

const PlanReport& PlanBook::report(int micro_batches) {
  return entry(micro_batches).report;
}

uint64_t PlanBook::signature(int micro_batches) {
  return entry(micro_batches).signature;
}

PlanBook::Entry& PlanBook::entry(int micro_batches) {
  if (const auto known = entries_.find(micro_batches); known != entries_.end()) {
    return known->second;
  }
  return entries_.emplace(micro_batches, make(micro_batches, segments_)).first->second;
}

PlanReport PlanBook::report_with(int micro_batches, const Segments& segments) const {
  return make(micro_batches, segments).report;
}

PlanBook::Entry PlanBook::make(int micro_batches, const Segments& segments) const {
  JobDescription description;
  description.model = cost_;
  description.stages = {{0, static_cast<int>(cost_.blocks.size())}};
  description.micro_batches = micro_batches;
  description.mesh = mesh_;
  description.placement = placement_;
  description.links = links_;
  description.reproducible = reproducible_;
  Job job(std::move(description));
  PlanOptions options{.segments = segments};
  options.window = prefetch_.value_or(window_of_blocks(job, kPrefetchedBlocks));
  Plans plans = compose(job, find_schedule("1f1b"), options);
  PlanReport report = simulate(plans, job);
  const uint64_t signature = communication_hash(plans, job);
  auto planned = std::make_shared<PlannedStep>(std::move(job), std::move(plans.front()));
  return {std::move(planned), std::move(report), signature};
}

} // namespace palimpsest
