#include <palimpsest/launcher/compose/search.h>

#include <palimpsest/core/base/words.h>
#include <palimpsest/memory/planners/chain_run.h>
#include <palimpsest/memory/planners/dynamic_programming.h>
#include <palimpsest/memory/planners/planner.h>
#include <palimpsest/memory/recompute/policies.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
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

void consider(SearchResult& result, StepChoice choice, int64_t budget) {
  if (result.least.policy.empty() || choice.cost.peak < result.least.cost.peak) {
    result.least = choice;
  }
  if (choice.cost.peak <= budget && (!result.best || better(choice, *result.best))) {
    result.best = std::move(choice);
  }
}

/// 1, 2, ... 16, then in steps of a sixteenth.
std::vector<int> settings_up_to(int most) {
  std::vector<int> settings;
  for (int setting = 1; setting <= most; setting += std::max(1, setting / 16)) {
    settings.push_back(setting);
  }
  return settings;
}

/// Finds the largest budget of the chain at which the planner's whole step fits.
void ask_planner(
    const CostChain& chain,
    std::string_view name,
    int64_t budget,
    const Evaluate& evaluate,
    SearchResult& result) {
  constexpr int kTries = 12;
  if (chain.stages.empty()) {
    return consider(result, {std::string(name), {}, evaluate({})}, budget);
  }
  const int64_t kept_all = run_chain(chain, {}).peak;
  std::function<ChainPlan(int64_t)> plan = [&](int64_t bytes) {
    return find_planner(name).plan(chain, bytes);
  };
  const auto try_with = [&](int64_t bytes) {
    StepChoice choice{.policy = std::string(name)};
    choice.segments = block_segments(plan(bytes).segments, chain);
    choice.cost = evaluate(choice.segments);
    const int64_t room = budget - choice.cost.peak;
    consider(result, std::move(choice), budget);
    return room;
  };
  int64_t fits =
      name == kOptimal ? DynamicProgram(chain, 0).least_budget() : plan(kept_all).least_budget;
  int64_t exceeds = kept_all + 1;
  if (try_with(fits) < 0) {
    return;
  }
  if (name == kOptimal) { // one table for all other budgets
    plan = [program = DynamicProgram(chain, kept_all)](int64_t bytes) {
      return program.plan(bytes);
    };
  }
  int64_t next = budget - (evaluate({}).peak - kept_all);
  for (int number = 0; number < kTries && exceeds - fits > 1; ++number) {
    next = std::clamp(next, fits + 1, exceeds - 1);
    const int64_t room = try_with(next);
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

} // namespace

bool needs_budget(const std::string& policy) {
  return std::ranges::find(kByBudget, policy) != kByBudget.end();
}

std::vector<StepChoice> simple_choices(const ModelCost& model, const Evaluate& evaluate) {
  std::vector<StepChoice> choices;
  const auto add = [&](const std::string& name, PolicyOptions options, const std::string& text) {
    for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
      options.kept_tape = options.rerun_tape = tape;
      StepChoice choice{.policy = fmt::format("{}, {} tapes", name + text, to_text(tape))};
      choice.segments = find_policy(name).decide(model, options);
      choice.cost = evaluate(choice.segments);
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
  SearchResult result;
  const CostChain chain = chain_of(job);
  if (policy != kAuto) {
    ask_planner(chain, policy, budget, evaluate, result);
    return result;
  }
  const StepChoice keep_all{"none, full tapes", {}, evaluate({})};
  consider(result, keep_all, budget);
  if (result.best) { // nothing computes less
    return result;
  }
  for (StepChoice& choice : simple_choices(job.model(), evaluate)) {
    consider(result, std::move(choice), budget);
  }
  for (const std::string_view planner : kByBudget) {
    if (planner != kAuto) { // on long chains the optimal one has to round
      ask_planner(chain, planner, budget, evaluate, result);
    }
  }
  return result;
}

} // namespace palimpsest
