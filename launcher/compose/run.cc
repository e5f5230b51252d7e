#include <palimpsest/launcher/compose/run.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/open_data.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/device.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/core/optim/groups.h>
#include <palimpsest/core/optim/register_optimizers.h>
#include <palimpsest/core/optim/schedule.h>
#include <palimpsest/launcher/compose/gradient_dump.h>
#include <palimpsest/memory/profile/profile.h>
#include <palimpsest/memory/report/metrics.h>

#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/select.h>

#include <algorithm>
#include <utility>

namespace palimpsest {
namespace {

DataSettings data_settings(const RunConfig& config, const Model& model) {
  DataSettings settings;
  for (const std::string& file : config.data().files()) {
    settings.files.push_back({file, config.data().format()});
  }
  for (const RunConfig::Source& source : config.data().sources()) {
    settings.files.push_back(
        {source.path(), source.has_format() ? source.format() : config.data().format()});
  }
  if (config.data().has_sequence_length()) {
    settings.sequence_length = config.data().sequence_length();
  } else if (model.reads_tokens() && config.data().format() != "tensors") {
    settings.sequence_length = std::min<int64_t>(512, model.max_positions());
  }
  settings.vocabulary_size = model.vocabulary_size();
  settings.input_size = model.input_size();
  settings.output_size = model.output_size();
  return settings;
}

OptimizerSettings optimizer_settings(const RunConfig::Optimizer& config) {
  OptimizerSettings settings{.name = config.name()};
  settings.beta1 = config.betas(0);
  settings.beta2 = config.betas(1);
  settings.eps = config.eps();
  settings.momentum = config.momentum();
  return settings;
}

ScheduleSettings schedule_settings(const RunConfig::Scheduler& config, int64_t steps) {
  ScheduleSettings settings{.name = config.name(), .total_steps = steps};
  if (config.has_warmup_steps()) {
    settings.warmup_steps = config.warmup_steps();
  }
  settings.warmup_ratio = config.warmup_ratio();
  settings.min_ratio = config.min_ratio();
  settings.decay_ratio = config.decay_ratio();
  settings.decay = config.decay();
  return settings;
}

std::vector<GroupRule> group_rules(const RunConfig::Optimizer& config) {
  std::vector<GroupRule> rules;
  for (const RunConfig::ParameterGroup& group : config.groups()) {
    GroupRule rule{.match = group.match()};
    rule.learning_rate_multiplier = group.learning_rate_multiplier();
    if (group.has_weight_decay()) {
      rule.weight_decay = group.weight_decay();
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

/// Asking for more than there is would end in the system killing a process of its choice.
void require_memory(int64_t bytes, std::string_view purpose) {
  const int64_t available = Device::cpu().available_memory();
  if (bytes > available) {
    throw EnvironmentError(
        "out of memory: {} takes {}, but {} are available; make the model or the micro-batch "
        "smaller",
        purpose,
        format_bytes(bytes),
        format_bytes(available));
  }
}

/// A block is measured with its weights, their gradients and a working copy.
int64_t bytes_to_measure(const Chain& chain) {
  int64_t largest = 0;
  for (const auto& unit : chain.units) {
    largest = std::max(largest, unit->numel());
  }
  return 3 * largest * static_cast<int64_t>(sizeof(float));
}

/// What a new run would replace, or could not; known before the first step.
void check_output(const std::filesystem::path& folder, bool restart) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path model = folder / "model";
  if (!restart && (fs::exists(folder / "metrics.jsonl", error) || fs::exists(model, error))) {
    throw UserError(
        "training.output: {} already holds a run; give another folder, or training.restart=true "
        "to begin it anew",
        folder.string());
  }
  if (fs::exists(model, error) && !fs::is_directory(model, error)) {
    throw UserError(
        "training.output: {} is a file, where the folder of the trained model belongs; remove it "
        "or give another folder",
        model.string());
  }
  check_writable_folder(folder);
}

std::vector<std::string> trainable_names(const Chain& chain) {
  std::vector<std::string> names;
  for (const auto& unit : chain.units) {
    if (unit->trainable()) {
      for (const Parameter& parameter : unit->parameters()) {
        names.push_back(parameter.name);
      }
    }
  }
  return names;
}

} // namespace

Run::Run(RunConfig config)
    : config_(std::move(config)), batch_(derive_batch(config_, 1)), memory_("rank 0") {
  const ScopedContext here(memory_);
  install_cpu_allocator();
  set_threads(
      config_.training().has_threads() ? static_cast<int>(config_.training().threads())
                                       : Device::cpu().threads());
  model_.emplace(config_);
  OpenedData data = open_data(data_settings(config_, *model_));
  model_->check_length(data.samples->input_size());
  notes_ = std::move(data.notes);
  BatchSettings settings{.global_batch_size = batch_.global, .micro_batch_size = batch_.micro};
  settings.epochs = config_.training().epochs();
  if (config_.training().has_steps()) {
    settings.steps = config_.training().steps();
  }
  settings.seed = static_cast<uint64_t>(config_.training().seed());
  settings.shuffle = config_.data().shuffle();
  settings.drop_last = config_.data().drop_last();
  batches_ = std::make_unique<StepBatches>(std::move(data.samples), settings);
  std::ranges::copy(batches_->notes(), std::back_inserter(notes_));
  make_optimizer_parts();
  require_memory(bytes_to_measure(model_->chain()), "measuring the largest block");
  const StepBatch first = batches_->load(0);
  plans_.emplace(
      config_,
      profile(
          model_->chain(), first.front(), memory_, {.moment_count = optimizer_->moment_count()}));
  full_plan();
}

Run::~Run() = default;

void Run::make_optimizer_parts() {
  const RunConfig::Optimizer& config = config_.optimizer();
  optimizer_ = make_optimizer(optimizer_settings(config));
  norm_ = std::make_unique<FoldedNorm>(config.norm_type());
  const auto schedule = std::make_shared<LearningRateSchedule>(
      schedule_settings(config_.scheduler(), batches_->step_count()));
  settings_.seed = static_cast<uint64_t>(config_.training().seed());
  settings_.learning_rate = [schedule, peak = config.learning_rate()](int64_t updates) {
    return peak * schedule->factor(updates);
  };
  if (config.has_max_grad_norm()) {
    settings_.clip = [most = config.max_grad_norm()](double norm) {
      return clip_factor(norm, most);
    };
  }
  const Chain& chain = model_->chain();
  const ParameterGroups groups(group_rules(config), config.weight_decay(), trainable_names(chain));
  for (const auto& unit : chain.units) {
    groups_.push_back(
        unit->trainable() ? groups.ranges(*unit, 0, unit->numel()) : std::vector<GroupRange>());
  }
}

int Run::micro_batches() const {
  return static_cast<int>(batches_->micro_batch_sizes(0).size());
}

const PlannedStep& Run::full_plan() {
  return *plans_->plan(micro_batches());
}

const PlanReport& Run::full_report() {
  return plans_->report(micro_batches());
}

void Run::prepare() {
  const ScopedContext here(memory_);
  check_output(output(), config_.training().restart());
  require_memory(full_report().peak(TierId::kDevice), "a step");
  store_ = std::make_unique<LocalParamStore>(
      model_->chain().units,
      LocalParamStore::Layout{.moment_count = optimizer_->moment_count()},
      groups_,
      memory_);
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  model_->fill(settings_.seed, parameters());
  for (size_t unit = 0; unit < model_->chain().units.size(); ++unit) {
    store_->refresh(static_cast<int>(unit));
  }
}

UnitSource Run::parameters() {
  return [this](int unit) { return UnitValues{.values = store_->shard(unit).values()}; };
}

void Run::dump_gradients(std::filesystem::path file) {
  gradient_dump_ = std::make_unique<GradientDump>(std::move(file), model_->chain());
}

void Run::train(const std::vector<Observer*>& observers) {
  check(store_ != nullptr, "a run trains after prepare()");
  const ScopedContext here(memory_);
  MetricsWriter metrics(output() / "metrics.jsonl");
  std::vector<Observer*> all = {&metrics};
  all.insert(all.end(), observers.begin(), observers.end());
  if (gradient_dump_ != nullptr) {
    all.push_back(gradient_dump_.get());
  }
  Executor executor(
      model_->chain(),
      {.params = *store_,
       .optimizer = *optimizer_,
       .norm = *norm_,
       .memory = memory_,
       .observers = all});
  Trainer trainer(
      executor,
      [this](int micro_batches) { return plans_->plan(micro_batches); },
      *batches_,
      memory_,
      settings_);
  trainer.run(all);
}

int64_t Run::next_token(const std::vector<int64_t>& ids) {
  if (ids.empty()) {
    throw UserError("next_token: there must be at least one token to go on from");
  }
  const ScopedContext here(memory_);
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  const auto length = static_cast<int64_t>(ids.size());
  at::Tensor row = at::empty({1, length}, at::kLong);
  std::ranges::copy(ids, row.mutable_data_ptr<int64_t>());
  return model_->logits(row).select(1, length - 1).argmax().item<int64_t>();
}

std::filesystem::path Run::write_model() {
  const ScopedContext here(memory_);
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  const std::filesystem::path folder = output() / "model";
  model_->write(folder, parameters());
  return folder;
}

} // namespace palimpsest
