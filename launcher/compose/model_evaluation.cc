#include <palimpsest/launcher/compose/model_evaluation.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/device.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/launcher/compose/agreed_cost.h>
#include <palimpsest/launcher/compose/saved_values.h>
#include <palimpsest/launcher/compose/settings.h>
#include <palimpsest/memory/profile/profile.h>
#include <palimpsest/parallel/comm/fingerprint.h>

#include <ATen/ops/from_blob.h>

#include <limits>
#include <utility>

namespace palimpsest {
namespace {

/// No fp32 copy beside what blocks compute with.
constexpr StatePrecision kParametersAlone{.master = false};

} // namespace

ModelEvaluation::ModelEvaluation(RunConfig config, EvaluationRequest request, Ranks& ranks)
    : config_(std::move(config)), request_(std::move(request)), ranks_(ranks),
      memory_("rank " + std::to_string(ranks.rank())) {
  const ScopedContext here(memory_);
  install_cpu_allocator();
  const auto long_work = ranks_.long_work("reading model and samples");
  ranks_.together([&] { open(); });
  if (ranks_.world() != nullptr) {
    compare_ranks();
    groups_ = split_world(*ranks_.world(), mesh_);
  }
  batches_ = held_out_batches(std::move(samples_), micro_batch(), groups_);
  plan();
  ranks_.together(
      [&] { name_shortages(memory_, "allocating and reading the parameters", [&] { fill(); }); });
  for (size_t unit = 0; unit < model_->chain().units.size(); ++unit) {
    store_->refresh(static_cast<int>(unit));
  }
  held_out_.emplace(
      std::move(batches_), HeldOut::Parts{*model_, *store_, memory_, ranks_, groups_, *plans_});
}

ModelEvaluation::~ModelEvaluation() = default;

EvaluationRecord ModelEvaluation::measure() {
  const ScopedContext here(memory_);
  int64_t step = 0;
  if (request_.checkpoint) {
    step = CheckpointReader(*request_.checkpoint).info().step();
  }
  return held_out_->measure(step).value(); // nobody asks it to stop
}

/// Everything that needs no other rank, but the sizes of examples.
void ModelEvaluation::open() {
  const int threads = ranks_.here().threads > 0 ? ranks_.here().threads : Device::cpu().threads();
  set_threads(
      config_.training().has_threads() ? static_cast<int>(config_.training().threads()) : threads);
  mesh_ = resolve_mesh(ranks_.size(), mesh_request(config_));
  model_.emplace(config_, request_.checkpoint);
  notes_ = model_->notes();
  std::optional<int64_t> most;
  if (config_.evaluation().has_samples()) {
    most = config_.evaluation().samples();
  }
  samples_ = held_out_samples(open_samples(), most);
  model_->check_length(samples_->input_size());
}

std::unique_ptr<SampleSource> ModelEvaluation::open_samples() {
  DataSettings settings = data_settings(config_, *model_, request_.checkpoint);
  settings.reading = {
      .threads = Device::cpu().threads(),
      .rank = ranks_.rank(),
      .ranks = ranks_.world() != nullptr ? ranks_.size() : 1,
      .sum = [this](std::span<int64_t> numbers) { ranks_.sum(numbers); },
      .progress = ranks_.reading()};
  const bool a_share = request_.files.empty() && settings.validation_fraction.has_value();
  if (!a_share) { // what the model is or was trained on need not be there, nor be of this kind
    settings.unused = Unused::kNote;
    settings.files = request_.files.empty() ? settings.validation_files : request_.files;
    settings.validation_files.clear();
    settings.validation_fraction.reset();
  }
  if (settings.files.empty()) {
    throw UserError("eval: nothing is held out; give data.validation in the config, or --data");
  }
  OpenedData data = open_data(settings);
  notes_.insert(notes_.end(), data.notes.begin(), data.notes.end());
  return a_share ? std::move(data.validation) : std::move(data.samples);
}

void ModelEvaluation::compare_ranks() {
  ranks_.alike([&] {
    require_same(
        *ranks_.world(),
        {{"model", model_->fingerprint()}, {"held-out samples", std::to_string(samples_->size())}});
  });
}

/// As a run does without a batch.
int64_t ModelEvaluation::micro_batch() const {
  constexpr int64_t kUsual = 8;
  return config_.training().has_micro_batch_size() ? config_.training().micro_batch_size() : kUsual;
}

void ModelEvaluation::plan() {
  ModelCost cost;
  ranks_.together([&] {
    name_shortages(
        memory_,
        "measuring the model",
        [&] {
          const StepBatch first = batches_->load(0);
          cost = profile(model_->chain(), first.front(), memory_, {.precision = kParametersAlone});
        },
        advice_on_measuring(micro_batch(), config_));
  });
  LinkCosts links;
  DeviceBudget budget;
  budget.already_held = memory_.total().live;
  if (ranks_.world() != nullptr) {
    agree_on_cost(cost, *ranks_.world());
    links = measure_links(*ranks_.world());
    ranks_.world()
        ->all_reduce(at::from_blob(&budget.already_held, {1}, at::kLong), ReduceOp::kMax)
        .wait();
  }
  if (config_.memory().has_device_budget()) {
    budget.bytes = config_.memory().device_budget();
  }
  ranks_.together([&] {
    plans_.emplace(config_, std::move(cost), mesh_, links, budget, micro_batch());
    plans_->evaluation();
  });
  memory_.set_limit(budget.bytes.value_or(std::numeric_limits<int64_t>::max()));
  if (ranks_.world() != nullptr) {
    ranks_.alike([&] {
      require_same(
          *ranks_.world(),
          {{"plan of an evaluation", std::to_string(plans_->evaluation().signature)}});
    });
  }
}

/// The parameters of this rank, filled but for what is exchanged afterwards.
void ModelEvaluation::fill() {
  ShardedParamStore::Settings settings;
  const Job& job = plans_->evaluation().planned->job;
  settings.placement = job.placement();
  settings.reproducible = job.reproducible();
  settings.precision = kParametersAlone;
  const Chain& chain = model_->chain();
  store_ = std::make_unique<ShardedParamStore>(
      chain.units,
      settings,
      std::vector<std::vector<GroupRange>>(chain.units.size()),
      groups_,
      memory_);
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  const UnitSource parameters = [this](int unit) {
    return UnitValues{.values = store_->shard(unit).values(), .begin = store_->range(unit).begin};
  };
  if (request_.checkpoint) {
    load_values(CheckpointReader(*request_.checkpoint), chain, parameters);
  } else {
    model_->fill(static_cast<uint64_t>(config_.training().seed()), parameters);
  }
}

} // namespace palimpsest
