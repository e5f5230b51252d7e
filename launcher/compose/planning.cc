#include <palimpsest/launcher/compose/planning.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/device_room.h>
#include <palimpsest/core/plan/lockstep.h>
#include <palimpsest/core/plan/signature.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/memory/planners/planner.h>
#include <palimpsest/memory/recompute/policies.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/gather.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

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

constexpr const char* kNoSwitchHelps =
    "more ranks with parallel.zero=3, or a smaller model or sequence, would help";

} // namespace

std::string advice_on_measuring(int64_t micro_batch, const RunConfig& config) {
  if (micro_batch > 1) {
    return fmt::format(
        "a training.micro_batch_size below {} or a smaller model would help", micro_batch);
  }
  return config.data().has_sequence_length()
      ? "a smaller data.sequence_length or a smaller model would help"
      : "a smaller model would help";
}

namespace {

/// What half as many samples a micro-batch would cost.
ModelCost halved(ModelCost cost) {
  const auto halve = [](int64_t& bytes) { bytes = (bytes + 1) / 2; };
  halve(cost.batch_bytes);
  for (BlockCost& block : cost.blocks) {
    std::ranges::for_each(block.value_bytes, halve); // workspaces hardly shrink
    halve(block.lean_bytes);
    halve(block.full_bytes);
    halve(block.weight_jobs_bytes);
  }
  return cost;
}

/// Of the rank that needs most.
std::string largest_parts(const PlanReport& report) {
  return largest_parts(*std::ranges::max_element(
      report.ranks, {}, [](const RankReport& rank) { return rank.peak[TierId::kDevice]; }));
}

} // namespace

std::array<std::pair<std::string_view, int64_t>, 5> peak_parts(const RankReport& rank) {
  using C = PlanCategory;
  const auto sum = [&](std::initializer_list<C> categories) {
    int64_t total = 0;
    for (const C category : categories) {
      total += rank.at_peak[category];
    }
    return total;
  };
  return {{
      {"parameters", sum({C::kParam, C::kParamShard})},
      {"gradients", sum({C::kGradBuffer, C::kGradShard})},
      {"optimizer", sum({C::kOptimizerState})},
      {"activations", sum({C::kValue, C::kGrad, C::kTape, C::kWeightJobs})},
      {"workspace", sum({C::kWorkspace})},
  }};
}

std::string largest_parts(const RankReport& rank) {
  auto parts = peak_parts(rank);
  std::ranges::sort(parts, std::greater(), [](const auto& part) { return part.second; });
  std::string text;
  for (const auto& [name, bytes] : parts) {
    if (bytes > 0) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, format_bytes(bytes));
    }
  }
  return text;
}

PlanBook::PlanBook(
    const RunConfig& config,
    ModelCost cost,
    const Mesh& mesh,
    const LinkCosts& links,
    const DeviceBudget& budget,
    int64_t micro_batch)
    : config_(config), cost_(std::move(cost)), mesh_(mesh), links_(links), budget_(budget.bytes),
      already_held_(budget.already_held), micro_batch_(micro_batch) {
  if (!config.parallel().reshard_after_forward()) {
    prefetch_ = std::numeric_limits<int64_t>::max();
  } else if (config.parallel().has_prefetch()) {
    prefetch_ = config.parallel().prefetch();
  }
  if (!needs_budget(config.activation_checkpointing().policy())) {
    fixed_ = decide(config.activation_checkpointing(), cost_);
  }
}

std::shared_ptr<const PlannedStep> PlanBook::plan(int micro_batches) {
  return entry(micro_batches).planned;
}

const PlanReport& PlanBook::report(int micro_batches) {
  return entry(micro_batches).report;
}

PlanReport PlanBook::report_with(int micro_batches, const Segments& segments) const {
  return compose_step(job(micro_batches, cost_, placement()), segments).report;
}

uint64_t PlanBook::signature(int micro_batches) {
  return entry(micro_batches).signature;
}

const StepChoice& PlanBook::choice(int micro_batches) {
  return entry(micro_batches).choice;
}

Job PlanBook::job(
    int micro_batches,
    const ModelCost& cost,
    const Placement& placement,
    bool training) const {
  JobDescription description;
  description.model = cost;
  description.stages = {{0, static_cast<int>(cost.blocks.size())}};
  description.micro_batches = micro_batches;
  description.mesh = mesh_;
  description.placement = placement;
  description.links = links_;
  description.reproducible = config_.training().reproducible();
  description.training = training;
  return Job(std::move(description));
}

int64_t PlanBook::room() const {
  return budget_ ? room_for_plans(*budget_, already_held_) : std::numeric_limits<int64_t>::max();
}

Plans PlanBook::plans_of(const Job& job, const Segments& segments, std::optional<int64_t> window)
    const {
  PlanOptions options;
  options.segments = segments;
  options.window = window ? *window : prefetch_.value_or(window_of_blocks(job, kPrefetchedBlocks));
  return compose(job, find_schedule("1f1b"), options);
}

PlanBook::Composed PlanBook::compose_step(
    const Job& job,
    const Segments& segments,
    std::optional<int64_t> window) const {
  Composed composed{.plans = plans_of(job, segments, window), .report = {}};
  composed.report = simulate(composed.plans, job);
  return composed;
}

Placement PlanBook::placement() const {
  return {.zero = static_cast<int>(config_.parallel().zero())};
}

Evaluate PlanBook::evaluator(const Job& job) const {
  return [this, &job](const Segments& segments) {
    const Plans plans = plans_of(job, segments);
    const PlanReport report = simulate_lockstep(plans, job); // what is chosen is simulated whole
    return step_cost(report, peak_with_samples(plans, report, job));
  };
}

bool PlanBook::states_fit() const {
  const Job step = job(1, cost_, placement());
  int64_t bytes = 0;
  for (const PersistentPlace& state : step.persistent(0)) {
    bytes += state.place.tier == TierId::kDevice ? step.size(state.place.slot) : 0;
  }
  return bytes <= room();
}

double PlanBook::least_seconds(int micro_batches) const {
  return evaluator(job(micro_batches, cost_, placement()))({}).seconds;
}

StepChoice PlanBook::choose(const Job& job) const {
  const std::string& policy = config_.activation_checkpointing().policy();
  if (fixed_) {
    StepChoice fixed{.policy = policy, .segments = *fixed_};
    fixed.cost = evaluator(job)(fixed.segments);
    if (fixed.cost.peak > room()) {
      refuse(job, fixed);
    }
    return fixed;
  }
  SearchResult found = search(job, policy, room(), evaluator(job));
  if (!found.best) {
    refuse(job, found.least);
  }
  return std::move(*found.best);
}

void PlanBook::refuse(const Job& job, const StepChoice& least) const {
  const int64_t enough = least_budget(least.cost.peak, already_held_);
  throw InfeasibleBudget(
      enough,
      fmt::format(
          "memory.device_budget: {} is not enough for a step, which takes {} ({} bytes) at least "
          "by {}: {}",
          format_bytes(*budget_),
          format_bytes(enough),
          enough,
          least.policy,
          largest_parts(compose_step(job, least.segments).report)));
}

std::string PlanBook::advice(int micro_batches) const {
  std::vector<std::pair<int64_t, std::string>> changes; // peak and what to write
  const auto least_peak = [&](const ModelCost& cost, const Placement& states) {
    const Job changed = job(micro_batches, cost, states);
    return search(changed, "auto", 0, evaluator(changed)).least.cost.peak;
  };
  if (config_.activation_checkpointing().policy() != "auto") {
    changes.emplace_back(least_peak(cost_, placement()), "activation_checkpointing=auto");
  }
  if (const int64_t micro = micro_batch_; micro > 1) {
    changes.emplace_back(
        least_peak(halved(cost_), placement()),
        fmt::format(
            "training.micro_batch_size={} with activation_checkpointing=auto", (micro + 1) / 2));
  }
  if (mesh_.data() > 1 && placement().zero < 3) {
    changes.emplace_back(
        least_peak(cost_, {.zero = 3}), "parallel.zero=3 with activation_checkpointing=auto");
  }
  if (changes.empty()) {
    return kNoSwitchHelps;
  }
  const auto& [peak, change] = *std::ranges::min_element(changes);
  return fmt::format("{} could do with about {}", change, format_bytes(peak));
}

bool PlanBook::tighten(int micro_batches, int64_t excess) {
  constexpr int64_t kShare = 16;
  if (fixed_) {
    return false;
  }
  const int64_t peak = choice(micro_batches).cost.peak;
  const int64_t lower = peak - std::max(excess, peak / kShare);
  const auto before = std::exchange(budget_, least_budget(lower, already_held_));
  std::map<int, Entry> entries = std::exchange(entries_, {});
  try {
    entry(micro_batches);
  } catch (const InfeasibleBudget&) {
    budget_ = before;
    entries_ = std::move(entries);
    return false;
  }
  return true;
}

bool PlanBook::refine(int micro_batches, ModelCost cost) {
  constexpr double kWorthIt = 0.95;
  const StepChoice present = choice(micro_batches);
  cost_ = std::move(cost);
  std::map<int, Entry> before = std::exchange(entries_, {});
  const PlanReport kept = report_with(micro_batches, present.segments);
  if (!fixed_ && report(micro_batches).seconds < kWorthIt * kept.seconds) {
    return true;
  }
  entries_ = std::move(before);
  entry(micro_batches).report = kept;
  return false;
}

PlanBook::Entry& PlanBook::entry(int micro_batches) {
  if (const auto known = entries_.find(micro_batches); known != entries_.end()) {
    return known->second;
  }
  Job planned = job(micro_batches, cost_, placement());
  StepChoice choice = choose(planned);
  Composed composed = compose_step(planned, choice.segments);
  const uint64_t signature = communication_hash(composed.plans, planned);
  auto step = std::make_shared<PlannedStep>(std::move(planned), std::move(composed.plans.front()));
  Entry made{std::move(step), std::move(composed.report), signature, std::move(choice)};
  return entries_.emplace(micro_batches, std::move(made)).first->second;
}

Job PlanBook::evaluation_job(int64_t samples, const Placement& placement) const {
  ModelCost cost = cost_;
  for (int64_t most = micro_batch_; most > samples; most = (most + 1) / 2) {
    cost = halved(std::move(cost));
  }
  return job(1, cost, placement, /*training=*/false);
}

PlanBook::Evaluation PlanBook::compose_evaluation(int64_t samples, bool prefetches) const {
  Job planned = evaluation_job(samples, placement());
  Composed composed =
      compose_step(planned, {}, prefetches ? std::nullopt : std::optional<int64_t>(0));
  const uint64_t signature = communication_hash(composed.plans, planned);
  auto step = std::make_shared<PlannedStep>(std::move(planned), std::move(composed.plans.front()));
  return {samples, prefetches, std::move(step), std::move(composed.report), signature};
}

const PlanBook::Evaluation& PlanBook::evaluation() {
  if (evaluation_) {
    return *evaluation_;
  }
  Evaluation made = compose_evaluation(micro_batch_, /*prefetches=*/true);
  const int64_t peak = peak_with_samples({made.planned->plan}, made.report, made.planned->job);
  if (peak > room()) {
    const int64_t enough = least_budget(peak, already_held_);
    throw InfeasibleBudget(
        enough,
        fmt::format(
            "memory.device_budget: {} is not enough for an evaluation, which takes {} ({} bytes): "
            "{}; give more, or a smaller training.micro_batch_size",
            format_bytes(*budget_),
            format_bytes(enough),
            enough,
            largest_parts(made.report)));
  }
  return evaluation_.emplace(std::move(made));
}

bool PlanBook::tighten_evaluation() {
  const Evaluation& present = evaluation();
  if (present.prefetches) {
    Evaluation without = compose_evaluation(present.samples, /*prefetches=*/false);
    if (without.report.peak(TierId::kDevice) < present.report.peak(TierId::kDevice)) {
      evaluation_ = std::move(without);
      return true;
    }
  }
  if (present.samples <= 1) {
    return false;
  }
  evaluation_ = compose_evaluation((present.samples + 1) / 2, /*prefetches=*/false);
  return true;
}

std::string PlanBook::evaluation_advice() const {
  if (mesh_.data() == 1 || placement().zero == 3) {
    return kNoSwitchHelps;
  }
  const Job sharded = evaluation_job(1, {.zero = 3});
  return fmt::format(
      "parallel.zero=3 could do with about {}",
      format_bytes(compose_step(sharded, {}, 0).report.peak(TierId::kDevice)));
}

} // namespace palimpsest
