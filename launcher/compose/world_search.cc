#include <palimpsest/launcher/compose/world_search.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/derive.h>
#include <palimpsest/core/models/decoder_cost.h>
#include <palimpsest/core/plan/closed_forms.h>
#include <palimpsest/core/plan/device_room.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/launcher/compose/model.h>
#include <palimpsest/launcher/compose/model_flops.h>
#include <palimpsest/launcher/compose/settings.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/gather.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace palimpsest {
namespace {

constexpr int64_t kMostSamples = 4096; // of a micro-batch where nothing bounds it
constexpr int kManyRanks = 1024;

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t divisor = 1; divisor * divisor <= number; ++divisor) {
    if (number % divisor == 0) {
      found.push_back(divisor);
      if (divisor != number / divisor) {
        found.push_back(number / divisor);
      }
    }
  }
  std::ranges::sort(found);
  return found;
}

template <typename T, typename U>
bool allows(const std::optional<T>& wanted, U value) {
  return !wanted || *wanted == value;
}

/// As run_config's keys say, and unset where only the default does.
void pin(WorldRequest& request, const RunConfig& config) {
  const RunConfig::Training& training = config.training();
  if (training.has_global_batch_size()) {
    request.global_batch = training.global_batch_size();
  }
  if (training.has_micro_batch_size()) {
    request.micro_batch = training.micro_batch_size();
  }
  if (training.has_gradient_accumulation_steps()) {
    request.accumulation = training.gradient_accumulation_steps();
  }
  const RunConfig::Parallel& parallel = config.parallel();
  if (parallel.has_zero()) {
    request.zero = static_cast<int>(parallel.zero());
  }
  if (parallel.has_shard()) {
    request.shard = static_cast<int>(parallel.shard());
  }
  if (parallel.has_replicate()) {
    request.replicate = static_cast<int>(parallel.replicate());
  }
  if (!parallel.reshard_after_forward()) {
    request.prefetch = std::numeric_limits<int64_t>::max();
  } else if (parallel.has_prefetch()) {
    request.prefetch = parallel.prefetch();
  }
}

} // namespace

WorldRequest world_request(const RunConfig& config, const Hardware& hardware) {
  const Model model(config);
  if (!model.reads_tokens()) {
    throw UserError(
        "--hardware: costs without a device are known for decoders, and model.family is {}; plan "
        "on the device itself, without --hardware",
        config.model().family());
  }
  WorldRequest request{.description = model.description()};
  const RunConfig::ActivationCheckpointing& recompute = config.activation_checkpointing();
  if (recompute.has_policy()) {
    if (!needs_budget(recompute.policy())) {
      throw UserError(
          "activation_checkpointing is {}, but --hardware decides what runs again by the memory; "
          "give auto or a planner's name, or leave it out",
          recompute.policy());
    }
    request.policy = recompute.policy();
  }
  request.model = model.decoder();
  request.decoder = model.decoder_options();
  request.packed = config.data().packing();
  request.tokens = config.data().has_sequence_length()
      ? config.data().sequence_length()
      : usual_sequence_length(model.max_positions());
  model.check_length(request.tokens);
  request.moment_count = make_optimizer(optimizer_settings(config.optimizer()))->moment_count();
  request.precision = state_precision(config.precision());
  request.reproducible = config.training().reproducible();
  request.hardware = hardware;
  request.budget = hardware.memory();
  if (config.memory().has_device_budget()) {
    request.budget = std::min(request.budget, config.memory().device_budget());
  }
  pin(request, config);
  return request;
}

// ---- what is proposed

std::vector<std::pair<int, Mesh>> WorldSearch::placements(int world) const {
  std::vector<std::pair<int, Mesh>> result;
  for (int zero = 0; zero <= 3; ++zero) {
    for (const int64_t size : divisors(world)) {
      const Mesh mesh{.replicate = static_cast<int>(world / size), .shard = static_cast<int>(size)};
      const bool shards = zero > 0 && world > 1;
      const bool wanted = allows(request_.zero, zero) && allows(request_.shard, mesh.shard) &&
          (allows(request_.replicate, mesh.replicate) || zero == 0);
      const bool repeats = world == 1 && zero > 0 && !request_.zero; // one rank shares nothing out
      if (wanted && !repeats && (mesh.shard > 1) == shards) {
        result.emplace_back(zero, mesh);
      }
    }
  }
  if (result.empty()) {
    throw UserError(
        "parallel: no mesh of {} ranks has zero {}, {} shards and {} replicas; change one of them",
        world,
        request_.zero ? std::to_string(*request_.zero) : "of any kind",
        request_.shard ? std::to_string(*request_.shard) : "any number of",
        request_.replicate ? std::to_string(*request_.replicate) : "any number of");
  }
  return result;
}

/// Samples of a micro-batch, ascending, and micro-batches of a step.
std::vector<std::pair<int64_t, int64_t>> WorldSearch::batches(int ranks) const {
  std::vector<std::pair<int64_t, int64_t>> result;
  if (!request_.global_batch) {
    for (int64_t samples = 1; samples <= kMostSamples; samples *= 2) {
      if (!request_.micro_batch) {
        result.emplace_back(samples, request_.accumulation.value_or(1));
      }
    }
    if (request_.micro_batch) {
      result.emplace_back(*request_.micro_batch, request_.accumulation.value_or(1));
    }
    return result;
  }
  const int64_t samples = *request_.global_batch / ranks;
  if (*request_.global_batch % ranks == 0) {
    for (const int64_t micro : divisors(samples)) {
      if (allows(request_.micro_batch, micro) && allows(request_.accumulation, samples / micro)) {
        result.emplace_back(micro, samples / micro);
      }
    }
  }
  if (result.empty()) {
    throw UserError(
        "training.global_batch_size: {} samples cannot be shared by {} ranks in equal micro-batches"
        "{}; give a multiple",
        *request_.global_batch,
        ranks,
        request_.micro_batch ? fmt::format(" of {}", *request_.micro_batch) : "");
  }
  return result;
}

std::vector<WorldSearch::Candidate> WorldSearch::candidates(int world) const {
  std::vector<Candidate> result;
  for (const auto& [zero, mesh] : placements(world)) {
    for (const auto& [samples, accumulation] : batches(mesh.data())) {
      result.push_back({zero, mesh, samples, accumulation});
    }
  }
  return result;
}

WorldSearch::Candidate WorldSearch::all_sharded(int world) const {
  const int zero = world == 1 ? 0 : request_.zero.value_or(3);
  const bool shards = zero > 0;
  return {zero, {.replicate = shards ? 1 : world, .shard = shards ? world : 1}, 1, 1};
}

// ---- what it takes

const ModelCost& WorldSearch::cost(int64_t micro_batch) {
  const auto known = costs_.find(micro_batch);
  if (known != costs_.end()) {
    return known->second;
  }
  const DecoderWork work{
      .samples = micro_batch,
      .tokens = request_.tokens,
      .packed = request_.packed,
      .decoder = request_.decoder,
      .moment_count = request_.moment_count,
      .precision = request_.precision};
  const DeviceSpeed speed = device_speed(request_.hardware, request_.decoder.compute);
  return costs_.emplace(micro_batch, analytic_cost(request_.model, work, speed)).first->second;
}

Job WorldSearch::job(const Candidate& candidate, int64_t micro_batches) {
  JobDescription description;
  description.model = cost(candidate.micro_batch);
  description.stages = {{0, static_cast<int>(description.model.blocks.size())}};
  description.micro_batches = static_cast<int>(micro_batches);
  description.mesh = candidate.mesh;
  description.placement.zero = candidate.zero;
  description.links.communication_overlaps = request_.hardware.overlap();
  description.reproducible = request_.reproducible;
  if (description.placement.shards_optimizer()) {
    for (UnitCost& unit : description.model.units) {
      unit.update_seconds /= candidate.mesh.shard;
    }
  }
  return Job(std::move(description));
}

WorldSearch::Simulated WorldSearch::simulated(
    const Candidate& candidate,
    int64_t micro_batches,
    const Segments& segments) {
  const Job planned = job(candidate, micro_batches);
  PlanOptions options;
  options.segments = segments;
  options.window = request_.prefetch.value_or(window_of_blocks(planned, kPrefetchedBlocks));
  const Plans plans = compose(planned, find_schedule("1f1b"), options);
  PlanReport report = simulate_lockstep(plans, planned, link_seconds(request_.hardware));
  const int64_t peak = peak_with_samples(plans, report, planned, candidate.accumulation);
  return {.report = std::move(report), .peak = peak};
}

StepCost WorldSearch::step_cost(const Candidate& candidate, const Segments& segments) {
  const int64_t exact = std::min(candidate.accumulation, kSimulatedMicroBatches);
  const auto [report, peak] = simulated(candidate, exact, segments);
  StepCost step = palimpsest::step_cost(report, peak);
  if (exact < candidate.accumulation) {
    const PlanReport fewer = simulated(candidate, exact - 1, segments).report;
    const StepCost before = palimpsest::step_cost(fewer, peak);
    const auto more = static_cast<double>(candidate.accumulation - exact);
    step.seconds += more * (step.seconds - before.seconds);
    step.computing += more * (step.computing - before.computing);
  }
  return step;
}

/// As in a run.
int64_t WorldSearch::room() const {
  return room_for_plans(request_.budget);
}

bool WorldSearch::states_fit(const Candidate& candidate) {
  StateBytes whole;
  for (const UnitCost& unit : cost(candidate.micro_batch).units) {
    whole.parameters += static_cast<double>(unit.parameter_bytes);
    whole.gradients += static_cast<double>(unit.gradient_bytes);
    whole.optimizer += static_cast<double>(unit.state_bytes);
  }
  // At the update all units have their reduced gradients, as shards where the optimizer has shards;
  // whole ones need not all have been there at once.
  const Placement placement{.zero = candidate.zero};
  StateBytes held = bytes_per_rank(whole, placement, candidate.mesh.shard);
  held.gradients = whole.gradients / (placement.shards_optimizer() ? candidate.mesh.shard : 1);
  return held.total() <= static_cast<double>(room());
}

double WorldSearch::tokens_of(const Candidate& candidate) const {
  return static_cast<double>(candidate.micro_batch * request_.tokens) *
      static_cast<double>(candidate.accumulation) * candidate.mesh.data();
}

// ---- what is kept

/// What needs the fewest bytes with a ZeRO stage, found where shards weigh little: what is whole
/// and when does not depend on the number of ranks.
const Segments& WorldSearch::least(int zero, int64_t micro_batch) {
  const auto known = least_.find({zero, micro_batch});
  if (known != least_.end()) {
    return known->second;
  }
  const Candidate any{zero, {.shard = zero == 0 ? 1 : kManyRanks}, micro_batch, 1};
  const Evaluate evaluate = [&](const Segments& again) { return step_cost(any, again); };
  SearchResult found = search(job(any, 1), request_.policy, 0, evaluate);
  return least_.emplace(std::pair(zero, micro_batch), std::move(found.least.segments))
      .first->second;
}

bool WorldSearch::can_fit(const Candidate& candidate) {
  const int64_t exact = std::min(candidate.accumulation, kSimulatedMicroBatches);
  return states_fit(candidate) &&
      simulated(candidate, exact, least(candidate.zero, candidate.micro_batch)).peak <= room();
}

/// Leaves out a placement's micro-batches from the first that cannot fit.
std::vector<WorldSearch::Candidate> WorldSearch::with_room(const std::vector<Candidate>& all) {
  std::vector<Candidate> result;
  const Candidate* full = nullptr;
  for (const Candidate& candidate : all) {
    if (full != nullptr && full->zero == candidate.zero &&
        full->mesh.shard == candidate.mesh.shard) {
      continue;
    }
    if (can_fit(candidate)) {
      result.push_back(candidate);
    } else {
      full = &candidate;
    }
  }
  return result;
}

std::optional<StepChoice> WorldSearch::choose(const Candidate& candidate) {
  const Evaluate evaluate = [&](const Segments& again) { return step_cost(candidate, again); };
  const StepChoice keep_all{"none", {}, evaluate({})};
  if (keep_all.cost.peak <= room()) { // nothing computes less
    return keep_all;
  }
  // of auto's, the optimum of a chain: simple policies are among what it may choose
  const std::string planner = request_.policy == "auto" ? "dynamic_programming" : request_.policy;
  const int64_t exact = std::min(candidate.accumulation, kSimulatedMicroBatches);
  auto found = search(job(candidate, exact), planner, room(), evaluate).best;
  if (!found) {
    const Segments& again = least(candidate.zero, candidate.micro_batch);
    StepChoice smallest{"least memory", again, evaluate(again)};
    if (smallest.cost.peak <= room()) {
      found = std::move(smallest);
    }
  }
  return found;
}

WorldLayout WorldSearch::layout(const Candidate& candidate, StepChoice choice) {
  const int64_t exact = std::min(candidate.accumulation, kSimulatedMicroBatches);
  PlanReport report = simulated(candidate, exact, choice.segments).report;
  WorldLayout result{
      .zero = candidate.zero,
      .mesh = candidate.mesh,
      .micro_batch = candidate.micro_batch,
      .accumulation = candidate.accumulation};
  const double seconds = choice.cost.seconds;
  result.tokens_per_second = tokens_of(candidate) / seconds;
  result.mfu = model_flops(job(candidate, 1)) * static_cast<double>(candidate.accumulation) /
      (seconds * peak_flops(request_.hardware, request_.decoder.compute));
  result.rank = std::move(report.ranks.front());
  const auto& busy = result.rank.busy;
  const auto busiest = std::ranges::max_element(busy);
  result.bound = static_cast<Lane>(busiest - busy.begin());
  result.bound_share = *busiest / report.seconds;
  result.choice = std::move(choice);
  return result;
}

std::vector<WorldLayout> WorldSearch::best(int world, int count) {
  std::vector<Candidate> all = candidates(world);
  counts_ = {.layouts = static_cast<int>(all.size())};
  all = with_room(all);
  counts_.without_room = counts_.layouts - static_cast<int>(all.size());
  for (Candidate& candidate : all) {
    candidate.fastest = tokens_of(candidate) / step_cost(candidate, {}).seconds;
  }
  std::ranges::stable_sort(all, std::greater(), &Candidate::fastest);
  std::vector<WorldLayout> found;
  for (const Candidate& candidate : all) {
    if (std::cmp_equal(found.size(), count) &&
        candidate.fastest <= found.back().tokens_per_second) {
      ++counts_.too_slow;
      continue;
    }
    ++counts_.searched;
    if (auto choice = choose(candidate)) {
      found.push_back(layout(candidate, std::move(*choice)));
      std::ranges::stable_sort(found, std::greater(), &WorldLayout::tokens_per_second);
      found.resize(std::min(found.size(), static_cast<size_t>(count)));
    }
  }
  return found;
}

/// Only a placement's first micro-batch counts: where it has no room, best() tries no larger one.
WorldLayout WorldSearch::leanest(int world) {
  std::optional<Candidate> leanest;
  StepChoice choice;
  const Candidate* before = nullptr;
  const std::vector<Candidate> all = candidates(world);
  for (const Candidate& candidate : all) {
    const bool goes_on = before != nullptr && before->zero == candidate.zero &&
        before->mesh.shard == candidate.mesh.shard;
    before = &candidate;
    if (goes_on) {
      continue;
    }
    const Segments& again = least(candidate.zero, candidate.micro_batch);
    StepChoice smallest{"least memory", again, step_cost(candidate, again)};
    if (!leanest || smallest.cost.peak < choice.cost.peak) {
      leanest = candidate;
      choice = std::move(smallest);
    }
  }
  check(leanest.has_value(), "a world of {} ranks has no layout", world);
  return layout(*leanest, std::move(choice));
}

std::optional<WorldLayout> WorldSearch::smallest(int limit) {
  int enough = 1;
  while (enough < limit && !can_fit(all_sharded(enough))) {
    enough = static_cast<int>(std::min(int64_t{limit}, int64_t{2} * enough));
  }
  if (!can_fit(all_sharded(enough))) {
    return std::nullopt;
  }
  int too_few = enough / 2;
  while (enough - too_few > 1) {
    const int middle = too_few + (enough - too_few) / 2;
    (can_fit(all_sharded(middle)) ? enough : too_few) = middle;
  }
  auto choice = choose(all_sharded(enough));
  check(choice.has_value(), "what fits {} ranks was not found again", enough);
  return layout(all_sharded(enough), std::move(*choice));
}

} // namespace palimpsest
