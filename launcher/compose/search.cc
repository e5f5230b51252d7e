#include <palimpsest/launcher/compose/search.h>

#include <palimpsest/core/base/words.h>
#include <palimpsest/memory/planners/chain_run.h>
#include <palimpsest/memory/planners/dynamic_programming.h>
#include <palimpsest/memory/planners/least_memory.h>
#include <palimpsest/memory/planners/planner.h>
#include <palimpsest/memory/recompute/policies.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

namespace palimpsest {
namespace {

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kOptimal = "dynamic_programming";
constexpr std::array kByBudget =
    {kAuto, std::string_view("chen_greedy"), std::string_view("revolve"), kOptimal};

/// Faster, or as fast and smaller.
bool better(const StepChoice& one, const StepChoice& other) {
  return std::tie(one.cost.seconds, one.cost.peak) < std::tie(other.cost.seconds, other.cost.peak);
}

/// 1, 2, ... 16, then in steps of a sixteenth.
std::vector<int> settings_up_to(int most) {
  std::vector<int> settings;
  for (int setting = 1; setting <= most; setting += std::max(1, setting / 16)) {
    settings.push_back(setting);
  }
  return settings;
}

/// What a search has found so far.
class Search {
 public:
  Search(const Job& job, int64_t budget, const Evaluate& evaluate)
      : chain_(chain_of(job)), micro_batches_(job.micro_batches()), budget_(budget),
        evaluate_(evaluate), kept_all_(run_chain(chain_, {})), base_(evaluate({})),
        outside_(base_.peak - kept_all_.peak) {}

  /// Whether nothing has to run again; nothing computes less.
  bool keep_all() {
    return note({.policy = "none, full tapes", .cost = base_}, kept_all_.peak) >= 0;
  }

  /// Finds the largest budget of the chain at which the planner's whole step fits.
  void ask_planner(std::string_view name);

  /// The smallest few, so that what fits at all does not depend on the budget, and the faster of
  /// those that may fit.
  void try_choices(std::vector<StepChoice> choices);

  SearchResult result() && {
    return std::move(result_);
  }

 private:
  /// Returns the bytes that stay free. Of two that need the same, as where an UPDATE needs most,
  /// the one whose chain needs less is the smaller.
  int64_t note(StepChoice choice, int64_t chain_peak) {
    const int64_t room = budget_ - choice.cost.peak;
    const std::pair bytes(choice.cost.peak, chain_peak);
    if (bytes < least_) {
      least_ = bytes;
      result_.least = choice;
    }
    if (room >= 0 && (!result_.best || better(choice, *result_.best))) {
      result_.best = std::move(choice);
    }
    return room;
  }

  /// Composes and simulates the whole step, whose chain needs so many bytes; as note().
  int64_t consider(StepChoice choice, int64_t chain_peak) {
    choice.cost = evaluate_(choice.segments);
    outside_ = std::min(outside_, choice.cost.peak - chain_peak);
    return note(std::move(choice), chain_peak);
  }

  /// Whether no step can be faster than what was found, if its chain takes so long: the device
  /// computes for that much longer than if nothing ran again.
  bool too_slow(double makespan) const {
    const double computing = base_.computing + micro_batches_ * (makespan - kept_all_.makespan);
    return result_.best && computing >= result_.best->cost.seconds;
  }

  const CostChain chain_;
  const int micro_batches_;
  const int64_t budget_;
  const Evaluate& evaluate_;
  const ChainRun kept_all_;
  const StepCost base_; // if nothing runs again
  int64_t outside_; // least that a step took beside its chain
  SearchResult result_;
  std::pair<int64_t, int64_t> least_{
      std::numeric_limits<int64_t>::max(),
      0}; // of the smallest: the step's and its chain's
};

void Search::ask_planner(std::string_view name) {
  constexpr int kTries = 12;
  if (chain_.stages.empty()) {
    note({.policy = std::string(name), .cost = base_}, kept_all_.peak);
    return;
  }
  std::function<ChainPlan(int64_t)> plan = [planner = find_planner(name), this](int64_t bytes) {
    return planner.plan(chain_, bytes);
  };
  std::optional<DynamicProgram> program; // for all budgets up to a largest one
  int64_t largest = 0;
  if (name == kOptimal) {
    plan = [&](int64_t bytes) {
      if (!program || bytes > largest) {
        largest = std::min(bytes + bytes / 8, kept_all_.peak);
        program.emplace(chain_, largest);
      }
      return program->plan(bytes);
    };
  }
  const auto try_plan = [&](const Segments& segments, int64_t peak) {
    return consider({std::string(name), block_segments(segments, chain_)}, peak);
  };
  Segments least = least_memory(chain_);
  double fastest = kept_all_.makespan; // of the planner's plans, at whatever budget
  if (name != kOptimal) {
    const ChainPlan most = plan(kept_all_.peak);
    least = plan(most.least_budget).segments;
    fastest = most.makespan;
  }
  const int64_t least_peak = run_chain(chain_, least).peak;
  if (try_plan(least, least_peak) < 0) {
    return;
  }
  int64_t fits = least_peak - 1;
  int64_t exceeds = kept_all_.peak + 1;
  if (too_slow(fastest)) {
    return;
  }
  int64_t next = budget_ - (base_.peak - kept_all_.peak);
  for (int number = 0; number < kTries && exceeds - fits > 1; ++number) {
    next = std::clamp(next, fits + 1, exceeds - 1);
    const ChainPlan made = plan(next);
    if (too_slow(made.makespan)) { // and so is what takes less
      fits = next;
      next += (exceeds - next) / 2;
      continue;
    }
    const int64_t room = try_plan(made.segments, made.peak);
    const int64_t tried = next;
    next = tried + room;
    if (room >= 0) {
      fits = tried;
      next = next >= exceeds ? tried + (exceeds - tried) / 2 : next;
    } else {
      exceeds = tried;
      next = next <= fits ? fits + (tried - fits) / 2 : next;
    }
    if (room == 0) {
      return;
    }
  }
}

void Search::try_choices(std::vector<StepChoice> choices) {
  constexpr size_t kSmallest = 8;
  constexpr int kPatience = 24; // fitting ones that are not faster, though by the chain they may be
  constexpr int64_t kAccuracy = 2; // so many times less than a chain's bytes a step may need for it
  struct Proposal {
    StepChoice choice;
    double makespan = 0;
    int64_t peak = 0;
  };
  std::vector<Proposal> proposals;
  for (StepChoice& choice : choices) {
    const ChainRun run = run_chain(chain_, stage_segments(choice.segments, chain_));
    proposals.push_back({std::move(choice), run.makespan, run.peak});
  }
  std::ranges::stable_sort(proposals, {}, &Proposal::peak);
  const size_t smallest = std::min(kSmallest, proposals.size());
  for (Proposal& small : std::span(proposals).first(smallest)) {
    consider(std::move(small.choice), small.peak);
  }
  if (!result_.best) {
    return;
  }
  const auto others = std::span(proposals).subspan(smallest);
  std::ranges::stable_sort(others, {}, &Proposal::makespan);
  int failures = 0;
  for (Proposal& other : others) {
    if (too_slow(other.makespan) || failures == kPatience) {
      return;
    }
    if (outside_ + other.peak - other.peak / kAccuracy > budget_) {
      continue;
    }
    const double before = result_.best->cost.seconds;
    const bool fits = consider(std::move(other.choice), other.peak) >= 0;
    failures = result_.best->cost.seconds < before ? 0 : failures + (fits ? 1 : 0);
  }
}

} // namespace

bool needs_budget(const std::string& policy) {
  return std::ranges::find(kByBudget, policy) != kByBudget.end();
}

StepCost step_cost(const PlanReport& report, int64_t peak) {
  StepCost cost{.peak = peak, .seconds = report.seconds};
  for (const RankReport& rank : report.ranks) {
    cost.computing = std::max(cost.computing, rank.busy[Lane::kCompute]);
  }
  return cost;
}

std::vector<StepChoice> simple_choices(const ModelCost& model) {
  std::vector<StepChoice> choices;
  const auto add = [&](const std::string& name, PolicyOptions options, const std::string& text) {
    for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
      options.kept_tape = options.rerun_tape = tape;
      StepChoice choice{.policy = fmt::format("{}, {} tapes", name + text, to_text(tape))};
      choice.segments = find_policy(name).decide(model, options);
      choices.push_back(std::move(choice));
    }
  };
  add("none", {}, "");
  const int layers = static_cast<int>(model.layers.size());
  if (layers == 0) {
    return choices;
  }
  for (const bool keep_last : {false, true}) {
    add("full", {.keep_last_segment = keep_last}, keep_last ? " but the last layer" : "");
  }
  for (const int setting : settings_up_to(layers)) {
    add("uniform", {.segments = setting}, fmt::format(", {}", counted(setting, "segment")));
    add("every_n", {.n = setting}, fmt::format(", n {}", setting));
    add("key_layers",
        {.count = setting - 1},
        fmt::format(", {} kept", counted(setting - 1, "layer")));
  }
  return choices;
}

SearchResult search(
    const Job& job,
    const std::string& policy,
    int64_t budget,
    const Evaluate& evaluate) {
  Search search(job, budget, evaluate);
  if (policy != kAuto) {
    search.ask_planner(policy);
    return std::move(search).result();
  }
  if (search.keep_all()) {
    return std::move(search).result();
  }
  search.ask_planner(kOptimal);
  search.try_choices(simple_choices(job.model()));
  for (const std::string_view planner : kByBudget) {
    if (planner != kAuto && planner != kOptimal) { // on long chains the optimal one has to round
      search.ask_planner(planner);
    }
  }
  return std::move(search).result();
}

} // namespace palimpsest
