#include <palimpsest/launcher/compose/run.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/device.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/hub_cache.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/core/optim/register_optimizers.h>
#include <palimpsest/launcher/compose/agreed_cost.h>
#include <palimpsest/launcher/compose/checkpoint_export.h>
#include <palimpsest/launcher/compose/hardware.h>
#include <palimpsest/launcher/compose/monitor.h>
#include <palimpsest/launcher/compose/plan_choice.h>
#include <palimpsest/launcher/compose/replanner.h>
#include <palimpsest/launcher/compose/run_logs.h>
#include <palimpsest/launcher/compose/settings.h>
#include <palimpsest/launcher/compose/skipped_limit.h>
#include <palimpsest/launcher/compose/whole_units.h>
#include <palimpsest/parallel/comm/fingerprint.h>
#include <palimpsest/parallel/sharding/step_agreement.h>

#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/select.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace palimpsest {
namespace {

/// Whether the folder has weights that are not older than `file`.
bool is_as_new(const std::filesystem::path& folder, const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto time = fs::last_write_time(file);
  return std::ranges::any_of(
      fs::directory_iterator(folder, error), [&](const fs::directory_entry& entry) {
        return entry.path().extension() == ".safetensors" && entry.last_write_time(error) >= time;
      });
}

std::vector<UnitLayout> trained_layouts(const Job& job, const ShardedParamStore& store) {
  std::vector<UnitLayout> layouts;
  for (const int unit : job.trained_units(0)) {
    layouts.push_back(store.layout(unit));
  }
  return layouts;
}

/// A checkpoint of the output folder that keeps what its model's folder held, where that is gone.
std::optional<std::filesystem::path> kept_model(const RunConfig& config) {
  const auto gone = [](bool named, const std::string& name) { return named && !find_model(name); };
  if (!gone(config.model().has_path(), config.model().path()) &&
      !gone(config.data().has_tokenizer(), config.data().tokenizer())) {
    return std::nullopt;
  }
  std::vector<std::string> passed_over;
  const auto newest = newest_checkpoint(config.training().output(), Damaged::kSkip, passed_over);
  return newest ? std::optional(newest->folder) : std::nullopt;
}

} // namespace

Run::Run(RunConfig config, bool allow_change)
    : Run(std::move(config), std::make_unique<Ranks>(), allow_change) {}

Run::Run(RunConfig config, std::unique_ptr<Ranks> own, bool allow_change)
    : Run(std::move(config), *own, allow_change) {
  own_ranks_ = std::move(own);
}

Run::Run(RunConfig config, Ranks& ranks, bool allow_change)
    : ranks_(ranks), config_(std::move(config)), memory_("rank " + std::to_string(ranks.rank())) {
  const ScopedContext here(memory_);
  install_cpu_allocator();
  {
    const auto long_work = ranks_.long_work("reading model and data");
    if (!ranks_.planned()) {
      checkpoints_.emplace(config_, ranks_, allow_change);
    }
    ranks_.together([&] { open(); });
    if (ranks_.world() != nullptr) {
      compare_ranks();
    }
  }
  ranks_.end_if_any_asked();
  if (!nothing_left()) {
    plan();
  }
}

/// Chooses how steps are computed, and splits the ranks accordingly.
void Run::plan() {
  const ScopedContext here(memory_);
  const LinkCosts links = ranks_.world() == nullptr ? LinkCosts() : measure_links(*ranks_.world());
  ChosenPlans chosen = choose_plans(
      {.config = config_,
       .ranks = ranks_,
       .chain = model_->chain(),
       .batches = *batches_,
       .memory = memory_,
       .moment_count = optimizer_->moment_count(),
       .evaluates = held_out() > 0},
      batch_,
      links);
  batch_ = chosen.batch;
  *config_.mutable_parallel() = chosen.parallel;
  mesh_ = chosen.mesh;
  plans_.emplace(std::move(chosen.plans));
  if (ranks_.world() != nullptr) {
    groups_ = split_world(*ranks_.world(), mesh_);
    compare_plans();
  }
}

PlanBook& Run::plans() {
  if (!plans_) {
    plan();
  }
  return *plans_;
}

Run::~Run() = default;

/// Everything that needs no other rank, but the sizes of examples.
void Run::open() {
  if (config_.logging().has_hardware()) { // wrong ones are known before anything long
    load_hardware(config_.logging().hardware(), "logging.hardware");
  }
  const int threads = ranks_.here().threads > 0 ? ranks_.here().threads : Device::cpu().threads();
  set_threads(
      config_.training().has_threads() ? static_cast<int>(config_.training().threads()) : threads);
  batch_ = derive_batch(config_, ranks_.size());
  mesh_ = resolve_mesh(ranks_.size(), mesh_request(config_));
  const auto kept = checkpoints_ ? checkpoints_->start() : kept_model(config_);
  model_.emplace(config_, kept);
  DataSettings data_of_run = data_settings(config_, *model_, kept);
  data_of_run.reading = {
      .threads = Device::cpu().threads(),
      .rank = ranks_.rank(),
      .ranks = ranks_.world() != nullptr ? ranks_.size() : 1,
      .sum = [this](std::span<int64_t> numbers) { ranks_.sum(numbers); },
      .progress = ranks_.reading()};
  OpenedData data = open_data(data_of_run);
  std::optional<int64_t> most;
  if (config_.evaluation().has_samples()) {
    most = config_.evaluation().samples();
  }
  held_out_samples_ = held_out_samples(std::move(data.validation), most);
  evaluated_.samples = held_out_samples_ == nullptr ? 0 : held_out_samples_->size();
  model_->check_length(data.samples->input_size());
  notes_ = model_->notes();
  std::ranges::move(data.notes, std::back_inserter(notes_));
  BatchSettings batches = batch_settings(config_, batch_, mesh_, ranks_.rank());
  batches.mixture = std::move(data.mixture);
  batches_ = std::make_unique<StepBatches>(std::move(data.samples), batches);
  std::ranges::copy(batches_->notes(), std::back_inserter(notes_));
  optimizer_ = make_optimizer(optimizer_settings(config_.optimizer()));
  norm_ = std::make_unique<FoldedNorm>(config_.optimizer().norm_type());
  settings_ = trainer_settings(config_, batches_->step_count());
  parameter_groups_ = parameter_groups(config_.optimizer(), model_->chain());
  if (checkpoints_ && checkpoints_->start()) {
    const CheckpointReader reader(*checkpoints_->start());
    const auto& numbers = reader.info().numbers();
    evaluated_ = EvaluationState::from({numbers.begin(), numbers.end()}, held_out());
    position_.step = reader.info().step();
    nothing_left_ = done_before(reader);
  }
}

/// Whether this checkpoint ends the run and its model is written. Where the data or the batch are
/// others, loading it will say so.
bool Run::done_before(const CheckpointReader& reader) const {
  const auto& data = reader.info().data();
  const bool same = data.samples() == batches_->sample_count() &&
      data.consumed() == batches_->consumed(position_.step);
  const auto patience = Evaluations::settings(config_.evaluation()).patience;
  const bool done = position_.step >= batches_->step_count() || evaluated_.used_up(patience);
  return same && done && !evaluated_.dropped &&
      is_as_new(model_folder(), *checkpoints_->start() / kManifestName);
}

int Run::micro_batches() const {
  return step_sizes(*batches_).front();
}

const PlannedStep& Run::full_plan() {
  return *plans().plan(micro_batches());
}

const PlanReport& Run::full_report() {
  return plans().report(micro_batches());
}

/// Before the first exchange whose size depends on what is compared.
void Run::compare_ranks() {
  ranks_.alike([&] {
    require_same(
        *ranks_.world(),
        {{"model", model_->fingerprint()},
         {"samples of an epoch", std::to_string(batches_->sample_count())},
         {"held-out samples", std::to_string(held_out())},
         {"steps", std::to_string(batches_->step_count())}});
  });
  nothing_left_ = all_agree(*ranks_.world(), nothing_left_); // file times may differ by machine
}

/// So that no plan turns out to be another than the other ranks' in the middle of a run.
void Run::compare_plans() {
  for (const int size : step_sizes(*batches_)) {
    require_same_plan(ranks_, *plans_, size);
  }
  if (held_out() > 0) {
    require_same_evaluation(ranks_, *plans_);
  }
}

void Run::prepare() {
  check(checkpoints_.has_value(), "a run that is planned is never prepared");
  const int64_t budget = plans().budget().value_or(std::numeric_limits<int64_t>::max());
  ranks_.end_if_any_asked();
  const ScopedContext here(memory_);
  const auto long_work = ranks_.long_work("reading weights or a checkpoint");
  checkpoints_->claim();
  memory_.set_limit(budget);
  checkpoints_->read(
      [&] { name_shortages(memory_, "allocating and reading the states", [&] { allocate(); }); });
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  for (size_t unit = 0; unit < model_->chain().units.size(); ++unit) {
    store_->refresh(static_cast<int>(unit));
  }
}

/// The states of this rank, filled but for what is exchanged afterwards.
void Run::allocate() {
  require_memory(ranks_.here().ranks * full_report().peak(TierId::kDevice), "a step");
  ShardedParamStore::Settings settings;
  settings.placement = full_plan().job.placement();
  settings.reproducible = full_plan().job.reproducible();
  settings.moment_count = optimizer_->moment_count();
  settings.precision = state_precision(config_.precision());
  store_.reset(); // of a checkpoint that was damaged
  store_ = std::make_unique<ShardedParamStore>(
      model_->chain().units, settings, parameter_groups_, groups_, memory_);
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  if (checkpoints_->start()) {
    position_ = checkpoints_->load(parts());
    evaluated_ = EvaluationState::from(checkpoints_->numbers(), held_out());
  } else {
    model_->fill(settings_.seed, parameters());
  }
}

RunParts Run::parts() {
  return {*model_, *store_, mesh_, groups_, *batches_, evaluated_.numbers()};
}

/// Null where nothing is held out.
std::unique_ptr<Evaluations> Run::evaluations(const std::vector<Observer*>& observers) {
  if (held_out() == 0) {
    return nullptr;
  }
  if (!held_out_) {
    held_out_.emplace(
        held_out_batches(std::move(held_out_samples_), batch_.micro, groups_),
        HeldOut::Parts{*model_, *store_, memory_, ranks_, groups_, *plans_});
  }
  const RunConfig::Evaluation& config = config_.evaluation();
  std::function<void()> keep;
  if (config.has_every() && config.keep_best()) {
    keep = [this] { write_model_to(best_model()); };
  }
  Evaluations::Settings settings = Evaluations::settings(config);
  settings.done = position_;
  settings.last_step = batches_->step_count();
  settings.stop_requested = ranks_.here().stop_requested;
  return std::make_unique<Evaluations>(
      *held_out_, settings, evaluated_, observers, std::move(keep));
}

/// False where it was asked to stop, in an evaluation after the last step too.
bool Run::train_on(
    Trainer& trainer,
    Evaluations* evaluations,
    const std::vector<Observer*>& observers) {
  if (evaluations == nullptr) {
    return trainer.run(observers);
  }
  evaluations->catch_up();
  const bool done = trainer.run(observers) && !evaluated_.dropped;
  return done || evaluations->ended();
}

UnitSource Run::parameters() {
  return [this](int unit) {
    return UnitValues{.values = store_->shard(unit).values(), .begin = store_->range(unit).begin};
  };
}

void Run::lead_with_whole(
    const WholeUnits::Part& part,
    const std::function<void(const UnitSource&)>& use) {
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  WholeUnits(*store_, groups_, ranks_).lead(part, use);
}

/// Of the next step's loss, where it is scaled.
double Run::first_scale() const {
  const LossScaling& scaling = *settings_.loss_scaling;
  return position_.loss_scale ? LossScaler(scaling, *position_.loss_scale).scale()
                              : LossScaler(scaling).scale();
}

void Run::dump_gradients(std::filesystem::path file) {
  ranks_.together([&] {
    const auto lead = [this](const auto& use) {
      const auto scaled_back = [this](int unit) {
        const at::Tensor gradient = store_->shard(unit).gradient.to(at::kFloat);
        const double scale = settings_.loss_scaling ? first_scale() : 1;
        return scale == 1 ? gradient : gradient.div(scale);
      };
      lead_with_whole(scaled_back, use);
    };
    std::optional<std::filesystem::path> mine;
    if (ranks_.leads()) {
      mine = std::move(file);
    }
    gradient_dump_ = std::make_unique<GradientDump>(std::move(mine), model_->chain(), lead);
  });
}

/// Of the rank that leads.
std::vector<std::unique_ptr<Observer>> Run::logs() {
  std::vector<std::unique_ptr<Observer>> logs;
  ranks_.together([&] {
    if (ranks_.leads()) {
      logs = open_logs(*this);
    }
  });
  return logs;
}

bool Run::train(const std::vector<Observer*>& observers) {
  check(store_ != nullptr, "a run trains after prepare()");
  const ScopedContext here(memory_);
  bool finished = false;
  name_shortages(memory_, "training, outside of a step's plan", [&] {
    finished = train_observed_by(observers);
  });
  return finished;
}

bool Run::train_observed_by(const std::vector<Observer*>& observers) {
  const std::vector<std::unique_ptr<Observer>> logs = this->logs();
  std::vector<Observer*> all = observers;
  for (const auto& log : logs) {
    all.insert(all.begin(), log.get());
  }
  if (gradient_dump_ != nullptr) {
    all.push_back(gradient_dump_.get());
  }
  Monitor monitor(
      ranks_,
      *plans_,
      memory_,
      {.micro_batches = micro_batches(),
       .watch_memory = plans_->budget() && !config_.memory().has_device_budget(),
       .available = [] { return Device::cpu().available_memory(); }},
      all);
  if (plans_->budget()) {
    all.push_back(&monitor);
  }
  StepAgreement agreement(trained_layouts(full_plan().job, *store_), groups_, memory_);
  Executor executor(
      model_->chain(),
      {.params = *store_,
       .optimizer = *optimizer_,
       .norm = *norm_,
       .memory = memory_,
       .agreer = &agreement,
       .observers = all});
  settings_.begin = position_;
  settings_.ranks = groups_.data;
  const std::unique_ptr<Evaluations> evaluations = this->evaluations(all);
  const auto ended = [&] { return evaluations != nullptr && evaluations->ended(); };
  settings_.stop_requested = [&, asked = ranks_.here().stop_requested] {
    return ended() || (asked && asked());
  };
  Replanner replanner(ranks_, *plans_, memory_, all);
  all.push_back(&replanner);
  settings_.replan = [&](int micro_batches, const auto& shortage) {
    replanner.replan(micro_batches, shortage);
  };
  Trainer trainer(
      executor,
      [this](int micro_batches) { return plans_->plan(micro_batches); },
      *batches_,
      memory_,
      settings_);
  SkippedLimit limit(config_, trainer, ranks_); // told after the logs, before the step is saved
  all.insert(all.begin() + std::ssize(logs), &limit);
  const auto save_now = [&] {
    position_ = trainer.position();
    const ScopedCategory scratch(memory_, Category::kWorkspace);
    name_shortages(memory_, "saving a checkpoint", [&] { checkpoints_->save(position_, parts()); });
  };
  if (evaluations != nullptr) {
    all.push_back(evaluations.get()); // its state is saved with the step
  }
  const bool periodic = config_.checkpoint().has_save_every();
  PeriodicSave periodic_save(periodic ? config_.checkpoint().save_every() : 1, save_now);
  if (periodic) {
    all.push_back(&periodic_save);
  }
  const int64_t begin = position_.step;
  const bool dropped = evaluated_.dropped; // by the run that this one goes on from
  const bool finished = train_on(trainer, evaluations.get(), all);
  position_ = trainer.position();
  const bool caught_up = dropped && !evaluated_.dropped && position_.step == begin;
  const bool tried = periodic && position_.step % config_.checkpoint().save_every() == 0;
  const bool due = position_.step > begin && (!finished || !tried);
  if ((due && !saved()) || caught_up) {
    save_now();
  }
  return finished;
}

bool Run::saved() const {
  return checkpoints_->has(position_.step);
}

int64_t Run::next_token(const std::vector<int64_t>& ids) {
  if (ids.empty()) {
    throw UserError("next_token: there must be at least one token to go on from");
  }
  if (config_.parallel().zero() == 3) {
    throw UserError("next_token: parallel.zero 3 keeps no whole parameters between steps");
  }
  const ScopedContext here(memory_);
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  const auto length = static_cast<int64_t>(ids.size());
  at::Tensor row = at::empty({1, length}, at::kLong);
  std::ranges::copy(ids, row.mutable_data_ptr<int64_t>());
  return model_->logits(row).select(1, length - 1).argmax().item<int64_t>();
}

std::filesystem::path Run::model_folder() const {
  return output() / (model_->has_adapters() ? "adapter" : "model");
}

std::filesystem::path Run::write_model() {
  write_model_to(model_folder());
  return model_folder();
}

void Run::write_model_to(const std::filesystem::path& folder) {
  const ScopedContext here(memory_);
  const auto long_work = ranks_.long_work("writing the model");
  const auto part = [this](int unit) {
    const ParamUnit& of = *model_->chain().units[static_cast<size_t>(unit)];
    return numbers_in(of, store_->shard(unit).values());
  };
  const auto named = [&](const auto& work) { name_shortages(memory_, "writing the model", work); };
  named([&] { // of what the others give, and of what is written
    lead_with_whole(
        part, [&](const UnitSource& source) { named([&] { model_->write(folder, source); }); });
  });
}

} // namespace palimpsest
