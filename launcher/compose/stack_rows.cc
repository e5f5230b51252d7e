#include <palimpsest/launcher/compose/stack_rows.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/derive.h>
#include <palimpsest/core/config/nearest.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

namespace palimpsest {
namespace {

/// Where the rows stand: what the next technique changes.
struct Stacked {
  std::map<std::string, std::string> settings; // by key
  int64_t global = 1; // samples
  int64_t micro = 1; // at most so many a forward
  int64_t smaller = 1; // what accumulation makes of it
  int ranks = 1;
};

struct Technique {
  std::string_view name;
  /// Applies it and returns its row's name.
  std::string (*add)(Stacked& stacked, int ranks);
};

template <int stage>
std::string zero(Stacked& stacked, int ranks) {
  stacked.settings["parallel.zero"] = std::to_string(stage);
  stacked.ranks = ranks;
  return fmt::format("+ ZeRO-{} on {} ranks", stage, ranks);
}

constexpr std::array kTechniques = {
    Technique{
        "lean",
        [](Stacked& stacked, int /*ranks*/) -> std::string {
          stacked.settings["activation_checkpointing.tape"] = "lean";
          return "+ lean tape";
        }},
    Technique{
        "checkpointing",
        [](Stacked& stacked, int /*ranks*/) -> std::string {
          stacked.settings["activation_checkpointing.policy"] = "full";
          return "+ checkpointing";
        }},
    Technique{
        "bf16",
        [](Stacked& stacked, int /*ranks*/) -> std::string {
          stacked.settings["precision.compute"] = "bf16";
          return "+ bf16";
        }},
    Technique{
        "accumulation",
        [](Stacked& stacked, int /*ranks*/) -> std::string {
          stacked.micro = stacked.smaller;
          return fmt::format("+ micro-batches of {}", stacked.micro);
        }},
    Technique{"zero1", zero<1>},
    Technique{"zero2", zero<2>},
    Technique{"zero3", zero<3>},
};

const Technique& find(const std::string& name, std::string_view option) {
  const auto known = std::ranges::find(kTechniques, name, &Technique::name);
  if (known == kTechniques.end()) {
    throw UserError(
        "stack: {}: '{}' is not a technique{}; there are {}",
        option,
        name,
        did_you_mean(name, stack_techniques()),
        fmt::join(stack_techniques(), ", "));
  }
  return *known;
}

bool shares_states(const std::string& technique) {
  return technique.starts_with("zero");
}

/// A list of the user's: known names, each once, and none that would have no row.
void check_names(const std::vector<std::string>& names, std::string_view option, int ranks) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    find(*name, option);
    if (std::find(names.begin(), name, *name) != name) {
      throw UserError("stack: {}: '{}' comes twice; each row adds one technique", option, *name);
    }
    if (ranks == 1 && shares_states(*name)) {
      throw UserError(
          "stack: {}: {} shares states among ranks, and --ranks is 1; give 2 or more",
          option,
          *name);
    }
  }
}

/// Full tapes, fp32, one micro-batch, one rank, whatever the config says of techniques; and a few
/// steps that leave nothing have no use for what it says of evaluations, checkpoints and the rate's
/// course over a whole run.
Stacked baseline(const RunConfig& config) {
  Stacked stacked;
  for (const char* key :
       {"activation_checkpointing",
        "checkpoint",
        "data.validation",
        "evaluation",
        "memory",
        "parallel.shard",
        "precision.gradients",
        "precision.loss_scaling",
        "precision.master",
        "precision.moments",
        "scheduler",
        "training.gradient_accumulation_steps"}) {
    stacked.settings[key] = "null";
  }
  stacked.settings["activation_checkpointing.policy"] = "none";
  stacked.settings["activation_checkpointing.tape"] = "full";
  stacked.settings["precision.compute"] = "fp32";
  stacked.settings["parallel.zero"] = "0";
  stacked.settings["parallel.replicate"] = "1";
  const BatchSizes sizes = derive_batch(config, 1);
  stacked.global = stacked.micro = sizes.global;
  stacked.smaller = sizes.micro < sizes.global ? sizes.micro : 1;
  return stacked;
}

StackRun row(std::string name, const Stacked& stacked) {
  if (stacked.global % stacked.ranks != 0) {
    throw UserError(
        "stack: --ranks: the global batch of {} samples cannot be shared by {} ranks; give a "
        "number that divides it",
        stacked.global,
        stacked.ranks);
  }
  int64_t micro = std::min(stacked.micro, stacked.global / stacked.ranks);
  while (stacked.global / stacked.ranks % micro != 0) {
    --micro;
  }
  StackRun run{.name = std::move(name), .ranks = stacked.ranks};
  for (const auto& [key, value] : stacked.settings) {
    run.overrides.push_back(key + "=" + value);
  }
  run.overrides.push_back(fmt::format("training.global_batch_size={}", stacked.global));
  run.overrides.push_back(fmt::format("training.micro_batch_size={}", micro));
  return run;
}

} // namespace

std::vector<std::string> stack_techniques() {
  std::vector<std::string> names;
  for (const Technique& technique : kTechniques) {
    names.emplace_back(technique.name);
  }
  return names;
}

std::vector<StackRun> stack_rows(const RunConfig& config, const StackChoice& choice) {
  check_names(choice.order, "--order", choice.ranks);
  check_names(choice.only, "--only", choice.ranks);
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  const std::vector<std::string> order = choice.order.empty() ? stack_techniques() : choice.order;
  for (const std::string& name : choice.only) {
    if (!has(order, name)) {
      throw UserError(
          "stack: --only names {}, which --order leaves out; name it in both, or leave one out",
          name);
    }
  }
  Stacked stacked = baseline(config);
  std::vector<StackRun> rows = {row("baseline", stacked)};
  for (const std::string& name : order) {
    const bool wanted = choice.only.empty() || has(choice.only, name);
    if (wanted && (choice.ranks > 1 || !shares_states(name))) {
      std::string added = find(name, "--order").add(stacked, choice.ranks);
      rows.push_back(row(std::move(added), stacked));
    }
  }
  return rows;
}

} // namespace palimpsest
