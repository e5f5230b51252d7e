#include <palimpsest/launcher/compose/run.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/config/meaning.h>
#include <palimpsest/core/config/show.h>
#include <palimpsest/core/data/open_data.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/device.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/core/optim/groups.h>
#include <palimpsest/core/optim/register_optimizers.h>
#include <palimpsest/core/optim/schedule.h>
#include <palimpsest/launcher/compose/agreed_cost.h>
#include <palimpsest/memory/profile/profile.h>
#include <palimpsest/memory/report/metrics.h>
#include <palimpsest/parallel/comm/all_texts.h>
#include <palimpsest/parallel/comm/fingerprint.h>
#include <palimpsest/parallel/sharding/step_agreement.h>

#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/select.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
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

/// What a run could not replace at its end.
void check_model_folder(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path model = folder / "model";
  if (fs::exists(model, error) && !fs::is_directory(model, error)) {
    throw UserError(
        "training.output: {} is a file, where the folder of the trained model belongs; remove it "
        "or give another folder",
        model.string());
  }
}

MeshRequest mesh_request(const RunConfig& config) {
  MeshRequest request{.zero = static_cast<int>(config.parallel().zero())};
  request.stages = static_cast<int>(config.pipeline().stages());
  if (config.parallel().has_replicate()) {
    request.replicate = static_cast<int>(config.parallel().replicate());
  }
  if (config.parallel().has_shard()) {
    request.shard = static_cast<int>(config.parallel().shard());
  }
  return request;
}

/// Saves after every so many steps.
class PeriodicSave final : public Observer {
 public:
  PeriodicSave(int64_t every, std::function<void()> save) : every_(every), save_(std::move(save)) {}
  void step_end(const StepRecord& record) override {
    if (record.step % every_ == 0) {
      save_();
    }
  }

 private:
  int64_t every_;
  std::function<void()> save_;
};

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

Run::Run(RunConfig config) : Run(std::move(config), std::make_unique<Ranks>()) {}

Run::Run(RunConfig config, std::unique_ptr<Ranks> own) : Run(std::move(config), *own) {
  own_ranks_ = std::move(own);
}

Run::Run(RunConfig config, Ranks& ranks)
    : ranks_(ranks), config_(std::move(config)), memory_("rank " + std::to_string(ranks.rank())) {
  const ScopedContext here(memory_);
  install_cpu_allocator();
  const auto long_work = ranks_.long_work("measuring the model");
  StepBatch first;
  ModelCost cost;
  LinkCosts links;
  ranks_.together([&] { first = open(); });
  ranks_.together([&] {
    require_memory(
        ranks_.here().ranks * bytes_to_measure(model_->chain()), "measuring the largest block");
    cost = profile(
        model_->chain(), first.front(), memory_, {.moment_count = optimizer_->moment_count()});
  });
  if (ranks_.world() != nullptr) {
    compare_ranks();
    groups_ = split_world(*ranks_.world(), mesh_);
    agree_on_cost(cost, *ranks_.world());
    links = measure_links(*ranks_.world());
  }
  ranks_.together([&] { plans_.emplace(config_, std::move(cost), mesh_, links); });
  plan_all_windows();
}

Run::~Run() = default;

/// Everything that needs no other rank; returns the first step's micro-batches.
StepBatch Run::open() {
  const int threads = ranks_.here().threads > 0 ? ranks_.here().threads : Device::cpu().threads();
  set_threads(
      config_.training().has_threads() ? static_cast<int>(config_.training().threads()) : threads);
  batch_ = derive_batch(config_, ranks_.size());
  mesh_ = resolve_mesh(ranks_.size(), mesh_request(config_));
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
  settings.rank = mesh_.batch_rank(ranks_.rank());
  settings.ranks = mesh_.data();
  batches_ = std::make_unique<StepBatches>(std::move(data.samples), settings);
  std::ranges::copy(batches_->notes(), std::back_inserter(notes_));
  make_optimizer_parts();
  return batches_->load(0);
}

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
    parameter_groups_.push_back(
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

/// Before the first exchange whose size depends on what is compared.
void Run::compare_ranks() {
  ranks_.alike([&] {
    require_same(
        *ranks_.world(),
        {{"model", model_->fingerprint()},
         {"samples of an epoch", std::to_string(batches_->sample_count())},
         {"steps", std::to_string(batches_->step_count())}});
  });
}

/// The plan of a full step and that of an epoch's last, so that none has to be made or refused, or
/// turns out to be another than the other ranks', in the middle of a run.
void Run::plan_all_windows() {
  std::map<std::string, std::string> signatures;
  ranks_.together([&] {
    for (const int64_t step : {int64_t{0}, batches_->steps_per_epoch() - 1}) {
      const auto count = static_cast<int>(batches_->micro_batch_sizes(step).size());
      signatures[fmt::format("plan of {} micro-batches", count)] =
          std::to_string(plans_->signature(count));
    }
  });
  if (ranks_.world() != nullptr) {
    ranks_.alike([&] { require_same(*ranks_.world(), signatures); });
  }
}

void Run::prepare(bool allow_change) {
  const ScopedContext here(memory_);
  const auto long_work = ranks_.long_work("reading weights or a checkpoint");
  decide_start(allow_change);
  ranks_.together([&] {
    if (ranks_.leads()) {
      check_model_folder(output());
      check_writable_folder(output());
      output_lock_ = begin_run(output(), start_);
    }
  });
  ranks_.together([&] {
    if (read_run_id(output()) != start_.run_id) {
      throw EnvironmentError(
          "training.output: {} does not hold what rank 0 wrote there; give a folder that all "
          "machines share",
          output().string());
    }
  });
  load_states();
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  for (size_t unit = 0; unit < model_->chain().units.size(); ++unit) {
    store_->refresh(static_cast<int>(unit));
  }
}

/// With checkpoint.resume=auto a checkpoint that turns out to be damaged makes way for the one
/// before it.
void Run::load_states() {
  for (;;) {
    try {
      return ranks_.together([&] { allocate(); });
    } catch (const Error& error) {
      const bool automatic = config_.checkpoint().resume() == "auto" && start_.checkpoint;
      const auto older = automatic ? checkpoint_before(output(), *start_.checkpoint) : std::nullopt;
      if (!older) {
        throw;
      }
      ranks_.recover();
      start_.notes.push_back(fmt::format(
          "passed over {}: {}; going on from {}",
          start_.checkpoint->string(),
          error.what(),
          older->string()));
      start_.checkpoint = older;
    }
  }
}

/// The same on all ranks, which see one output folder.
void Run::decide_start(bool allow_change) {
  const auto changes = [&](const std::string& before) {
    return changes_of_meaning(
        load_config_text(before, "the checkpoint's config"), resolve_batch(config_, ranks_.size()));
  };
  ranks_.together([&] {
    start_ = palimpsest::decide_start(
        {.output = output(),
         .resume = config_.checkpoint().resume(),
         .restart = config_.training().restart(),
         .allow_change = allow_change,
         .changes = changes});
  });
  const std::string mine = start_.checkpoint.value_or("none").string();
  std::vector<std::string> all = {mine};
  if (ranks_.world() != nullptr) {
    all = all_texts(*ranks_.world(), mine);
    start_.run_id = all_texts(*ranks_.world(), start_.run_id).front();
  }
  ranks_.alike([&] {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] != all.front()) {
        throw EnvironmentError(
            "training.output: {} is not the same folder everywhere: rank 0 goes on from {}, rank "
            "{} "
            "from {}; give a folder that all machines share",
            output().string(),
            all.front(),
            rank,
            all[rank]);
      }
    }
  });
}

/// The states of this rank, filled but for what is exchanged afterwards.
void Run::allocate() {
  require_memory(ranks_.here().ranks * full_report().peak(TierId::kDevice), "a step");
  ShardedParamStore::Settings settings;
  settings.placement = full_plan().job.placement();
  settings.reproducible = full_plan().job.reproducible();
  settings.moment_count = optimizer_->moment_count();
  store_.reset(); // of a checkpoint that was damaged
  store_ = std::make_unique<ShardedParamStore>(
      model_->chain().units, settings, parameter_groups_, groups_, memory_);
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  if (start_.checkpoint) {
    load(*start_.checkpoint);
  } else {
    model_->fill(settings_.seed, parameters());
  }
}

void Run::load(const std::filesystem::path& checkpoint) {
  const CheckpointReader reader(checkpoint);
  const CheckpointInfo& info = reader.info();
  if (info.data().samples() != batches_->sample_count()) {
    throw UserError(
        "data: {} was written with {} samples an epoch, now there are {}; give the same files, or "
        "start anew in another output folder",
        checkpoint.string(),
        info.data().samples(),
        batches_->sample_count());
  }
  if (info.data().consumed() != batches_->consumed(info.step())) {
    throw UserError(
        "training.global_batch_size: the {} steps of {} took {} samples, with this batch they "
        "would "
        "have taken {}, so that samples would be left out or come twice; keep the batch, or start "
        "anew in another output folder",
        info.step(),
        checkpoint.string(),
        info.data().consumed(),
        batches_->consumed(info.step()));
  }
  SavedStates(model_->chain(), *store_, groups_).load(reader);
  position_ = {.step = info.step(), .updates = info.updates()};
  checkpoint_ = checkpoint;
}

CheckpointInfo Run::checkpoint_info() const {
  const StepWindow next = batches_->window(position_.step);
  CheckpointInfo info;
  info.set_run_id(start_.run_id);
  info.set_step(position_.step);
  info.set_updates(position_.updates);
  info.set_seed(settings_.seed);
  info.mutable_data()->set_epoch(next.epoch);
  info.mutable_data()->set_position(next.begin);
  info.mutable_data()->set_consumed(batches_->consumed(position_.step));
  info.mutable_data()->set_samples(batches_->sample_count());
  info.mutable_layout()->set_ranks(ranks_.size());
  info.mutable_layout()->set_stages(mesh_.pipeline);
  info.mutable_layout()->set_replicate(mesh_.replicate);
  info.mutable_layout()->set_shard(mesh_.shard);
  info.mutable_layout()->set_zero(config_.parallel().zero());
  return info;
}

void Run::save() {
  const auto long_work = ranks_.long_work("saving a checkpoint");
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  const SavedStates states(model_->chain(), *store_, groups_);
  Checkpoint checkpoint;
  checkpoint.info = checkpoint_info();
  checkpoint.config_text = config_text(config_, ranks_.size());
  checkpoint.model = model_->layout();
  checkpoint.pieces = states.pieces();
  SavingRanks saving{.rank = ranks_.rank(), .world = ranks_.size()};
  if (ranks_.world() != nullptr) {
    saving.agree = [this](bool ok) { return all_agree(*ranks_.world(), ok); };
  }
  std::optional<int64_t> keep_last;
  if (config_.checkpoint().has_keep_last()) {
    keep_last = config_.checkpoint().keep_last();
  }
  SavedCheckpoint saved;
  ranks_.alike(
      [&] { saved = save_checkpoint(output(), checkpoint, states.source(), saving, keep_last); });
  for (const std::string& warning : saved.warnings) { // the same one may come after every save
    if (std::ranges::find(warnings_, warning) == warnings_.end()) {
      warnings_.push_back(warning);
    }
  }
  if (!saved.folder.empty()) {
    checkpoint_ = saved.folder;
  } else if (ranks_.leads()) {
    warnings_.push_back(fmt::format(
        "step {} was not saved: {} is not finite; the checkpoints before it are kept",
        position_.step,
        saved.not_finite));
  }
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

void Run::dump_gradients(std::filesystem::path file) {
  ranks_.together([&] {
    const auto lead = [this](const auto& use) {
      lead_with_whole([this](int unit) { return store_->shard(unit).gradient; }, use);
    };
    std::optional<std::filesystem::path> mine;
    if (ranks_.leads()) {
      mine = std::move(file);
    }
    gradient_dump_ = std::make_unique<GradientDump>(std::move(mine), model_->chain(), lead);
  });
}

bool Run::train(const std::vector<Observer*>& observers) {
  check(store_ != nullptr, "a run trains after prepare()");
  const ScopedContext here(memory_);
  std::optional<MetricsWriter> metrics;
  ranks_.together([&] {
    if (ranks_.leads()) {
      metrics.emplace(output() / "metrics.jsonl", position_.step);
    }
  });
  std::vector<Observer*> all = observers;
  if (metrics) {
    all.insert(all.begin(), &*metrics);
  }
  if (gradient_dump_ != nullptr) {
    all.push_back(gradient_dump_.get());
  }
  std::vector<UnitLayout> layouts;
  for (const int unit : full_plan().job.trained_units(0)) {
    layouts.push_back(store_->layout(unit));
  }
  StepAgreement agreement(std::move(layouts), groups_, memory_);
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
  settings_.stop_requested = ranks_.here().stop_requested;
  Trainer trainer(
      executor,
      [this](int micro_batches) { return plans_->plan(micro_batches); },
      *batches_,
      memory_,
      settings_);
  const auto save_now = [&] {
    position_ = trainer.position();
    save();
  };
  const bool periodic = config_.checkpoint().has_save_every();
  PeriodicSave periodic_save(periodic ? config_.checkpoint().save_every() : 1, save_now);
  if (periodic) {
    all.push_back(&periodic_save);
  }
  const int64_t begin = position_.step;
  const bool finished = trainer.run(all);
  position_ = trainer.position();
  const bool tried = periodic && position_.step % config_.checkpoint().save_every() == 0;
  const bool due = !finished || (position_.step > begin && !tried);
  if (due && !saved()) {
    save();
  }
  return finished;
}

bool Run::saved() const {
  return checkpoint_.filename() == step_folder(position_.step);
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

std::filesystem::path Run::write_model() {
  const ScopedContext here(memory_);
  const std::filesystem::path folder = output() / "model";
  const auto long_work = ranks_.long_work("writing the model");
  lead_with_whole(
      [this](int unit) { return store_->shard(unit).values(); },
      [&](const UnitSource& source) { model_->write(folder, source); });
  return folder;
}

} // namespace palimpsest
