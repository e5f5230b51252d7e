#include <palimpsest/tests/support/plan/examples.h>

#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/memory/recompute/policies.h>
#include <palimpsest/parallel/pipeline/schedules.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace palimpsest::testing {
namespace {

UnitCost unit(bool frozen) {
  return {.parameter_bytes = 6, .gradient_bytes = 12, .state_bytes = 36, .frozen = frozen};
}

BlockCost block(std::vector<ValueRef> reads, std::vector<int64_t> values, std::vector<int> units) {
  return {
      .reads = std::move(reads),
      .value_bytes = std::move(values),
      .units = std::move(units),
      .lean_bytes = 4,
      .full_bytes = 8,
      .weight_jobs_bytes = 7,
      .forward_workspace = {1, 1, 1},
      .backward_workspace = {2, 2, 2},
      .weight_workspace = 2,
      .forward_seconds = 1,
      .input_seconds = 1,
      .weight_seconds = 1,
      .lean_seconds = 0.5};
}

Segments nested(const ModelCost& model) {
  const auto& layers = model.layers;
  const int middle = layers[layers.size() / 2].blocks.begin;
  const BlockRange left{layers.front().blocks.begin, middle};
  const BlockRange right{middle, layers.back().blocks.end};
  return {
      {{left.begin, right.end}, TapeMode::kNone, {recomputed(left), {right, TapeMode::kLean, {}}}}};
}

Placement placement(const std::string& away, int zero) {
  Placement result{.zero = zero};
  const bool all = away.starts_with("all");
  const TierId tier = away == "all_disk" ? TierId::kDisk : TierId::kHost;
  const auto set = [&](TierId& which, const char* name) {
    if (all || away == name) {
      which = tier;
    }
  };
  set(result.activations, "activations");
  set(result.optimizer, "optimizer");
  set(result.gradients, "gradients");
  if (zero == 3) {
    set(result.parameters, "parameters");
  }
  return result;
}

/// A tied unit gets the head's gradients before the embedding's, which a schedule may delay.
bool mixes_micro_batches(const Choice& choice) {
  const ModelCost model = choice.own ? *choice.own : named_model(choice.model);
  const bool tied = model.blocks.front().units == model.blocks.back().units;
  return tied && (choice.ranks > 1 || choice.schedule == "gpipe");
}

} // namespace

ModelCost chain(const ChainShape& shape) {
  ModelCost model;
  model.batch_bytes = 1;
  model.units.push_back(unit(shape.frozen_layers > 0 || shape.adapters));
  BlockCost embedding = block({{kLoader, 0}}, {1}, {0});
  embedding.lean_bytes = embedding.full_bytes = 1;
  embedding.backward_reads_units = false;
  model.blocks.push_back(embedding);
  const auto end = [&] { return static_cast<int>(model.blocks.size()); };
  for (int layer = 0; layer < shape.layers; ++layer) {
    const int first = end();
    for (int part = 0; part < shape.per_layer; ++part) {
      model.units.push_back(unit(layer < shape.frozen_layers || shape.adapters));
      std::vector<int> own{static_cast<int>(model.units.size()) - 1};
      if (shape.adapters) {
        model.units.push_back({.parameter_bytes = 1, .gradient_bytes = 2, .state_bytes = 6});
        own.push_back(own.front() + 1);
      }
      std::vector<ValueRef> reads{{end() - 1, 0}};
      if (shape.skips && part == 0 && layer >= (shape.layers + 1) / 2) {
        const auto mirror = static_cast<size_t>(shape.layers - 1 - layer);
        const ValueRef skip{model.layers[mirror].blocks.begin, shape.shared ? 0 : 1};
        if (skip != reads.front()) {
          reads.push_back(skip);
        }
      }
      const bool second = shape.skips && !shape.shared && part == 0 && layer < shape.layers / 2;
      model.blocks.push_back(
          block(reads, second ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1}, own));
      if (shape.saves_nothing) {
        model.blocks.back().saves.emplace();
      }
    }
    model.layers.push_back({fmt::format("layers.{}", layer), {first, end()}});
  }
  if (!shape.tied) {
    model.units.push_back(unit(shape.adapters));
  }
  const int head = shape.tied ? 0 : static_cast<int>(model.units.size()) - 1;
  model.blocks.push_back(block({{end() - 1, 0}, {kLoader, 0}}, {}, {head}));
  return model;
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> kNames{
      "decoder",
      "tied",
      "unet",
      "unet_shared",
      "unet_plain_concat",
      "frozen_prefix",
      "adapters",
      "long"};
  return kNames;
}

ModelCost named_model(const std::string& name) {
  ChainShape shape;
  if (name == "tied") {
    shape.tied = true;
  } else if (name == "unet") {
    shape.skips = true;
  } else if (name == "unet_shared") {
    shape.skips = shape.shared = true;
  } else if (name == "unet_plain_concat") {
    shape = {.layers = 5, .per_layer = 1, .skips = true, .saves_nothing = true};
  } else if (name == "frozen_prefix") {
    shape.frozen_layers = 2;
  } else if (name == "adapters") {
    shape.adapters = true;
  } else if (name == "long") {
    shape = {.layers = 9, .per_layer = 1};
  } else {
    check(name == "decoder", "no model {}", name);
  }
  return chain(shape);
}

std::vector<BlockRange> even_stages(const ModelCost& model, int count) {
  const int blocks = static_cast<int>(model.blocks.size());
  std::vector<BlockRange> stages;
  for (int stage = 0; stage < count; ++stage) {
    stages.push_back({blocks * stage / count, blocks * (stage + 1) / count});
  }
  return stages;
}

std::vector<BlockRange> layer_stages(const ModelCost& model, int count) {
  const size_t each = model.layers.size() / static_cast<size_t>(count);
  std::vector<BlockRange> stages;
  int begin = 0;
  for (int stage = 0; stage < count; ++stage) {
    const bool last = stage + 1 == count;
    const int end = last ? static_cast<int>(model.blocks.size())
                         : model.layers[each * static_cast<size_t>(stage + 1)].blocks.begin;
    stages.push_back({begin, end});
    begin = end;
  }
  return stages;
}

const std::vector<std::string>& policy_names() {
  static const std::vector<std::string> kNames{
      "none", "full", "every_2", "uniform_2", "sqrt", "lean", "keep_lean", "key_layers", "nested"};
  return kNames;
}

Segments named_segments(const std::string& name, const ModelCost& model) {
  if (name == "nested") {
    return nested(model);
  }
  if (name == "every_2") {
    return every_n(model, {.n = std::min<int>(2, static_cast<int>(model.layers.size()))});
  }
  if (name == "uniform_2") {
    return uniform(model, {.segments = 2});
  }
  if (name == "lean") {
    return full(model, {.rerun_tape = TapeMode::kLean});
  }
  if (name == "keep_lean") {
    return none(model, {.kept_tape = TapeMode::kLean});
  }
  if (name == "key_layers") {
    return key_layers(model, {.recompute = {"0", "2"}});
  }
  return find_policy(name).decide(model, {});
}

const std::vector<std::string>& offload_names() {
  static const std::vector<std::string> kNames{
      "no", "activations", "optimizer", "gradients", "parameters", "all_host", "all_disk"};
  return kNames;
}

std::string to_text(const Choice& choice) {
  return fmt::format(
      "model={} schedule={} ranks={} micro_batches={} policy={} zero={} replicate={} shard={} "
      "away={} "
      "window={} read_ahead={} lag={} reproducible={}",
      choice.model,
      choice.schedule,
      choice.ranks,
      choice.micro_batches,
      choice.policy,
      choice.zero,
      choice.replicate,
      choice.shard,
      choice.away,
      choice.window,
      choice.read_ahead,
      choice.lag,
      choice.reproducible);
}

Plans Case::plans() const {
  return compose(job, schedule, options);
}

Case make(const Choice& choice) {
  Mesh mesh{choice.ranks, choice.replicate, choice.shard};
  if (choice.zero == 0) {
    mesh = {choice.ranks, choice.replicate * choice.shard, 1};
  }
  ModelCost model = choice.own ? *choice.own : named_model(choice.model);
  Schedule schedule = find_schedule(choice.schedule);
  PlanOptions options{
      .segments = named_segments(choice.policy, model),
      .window = choice.window,
      .read_ahead = choice.read_ahead,
      .lag = choice.lag};
  auto stages = even_stages(model, choice.ranks * schedule.chunks);
  Job job(
      {.model = std::move(model),
       .stages = std::move(stages),
       .micro_batches = choice.micro_batches,
       .mesh = mesh,
       .placement = placement(choice.away, choice.zero),
       .links = choice.links,
       .reproducible = choice.reproducible && !mixes_micro_batches(choice)});
  return {std::move(job), std::move(schedule), std::move(options)};
}

Plans spread_copies(const Plans& plans, const Mesh& mesh) {
  Plans world;
  for (const StepPlan* plan : spread(plans, mesh)) {
    world.push_back(*plan);
  }
  return world;
}

PlanReport simulate_world(const Plans& world, const Job& job, const PlanBudget& budget) {
  WorldPlans plans;
  for (const StepPlan& plan : world) {
    plans.push_back(&plan);
  }
  return simulate(plans, job, budget);
}

bool full_run() {
  const char* value = std::getenv("PALIMPSEST_FULL");
  return value != nullptr && std::string(value) == "1";
}

} // namespace palimpsest::testing
