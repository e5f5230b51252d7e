#include <palimpsest/launcher/compose/settings.h>

#include <palimpsest/core/data/text_tools.h>
#include <palimpsest/core/io/hub_cache.h>
#include <palimpsest/core/optim/gradient_norm.h>

#include <memory>
#include <string>
#include <utility>

namespace palimpsest {
namespace {

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

/// The columns that are set, by the formats' own names for them.
Columns columns(const RunConfig::Columns& config) {
  Columns set;
  const google::protobuf::Descriptor& section = *config.GetDescriptor();
  for (int i = 0; i < section.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *section.field(i);
    if (config.GetReflection()->HasField(config, &field)) {
      set[field.name()] = config.GetReflection()->GetString(config, &field);
    }
  }
  return set;
}

} // namespace

std::filesystem::path texts_folder(
    const RunConfig& config,
    const std::optional<std::filesystem::path>& checkpoint) {
  const bool named = config.data().has_tokenizer();
  const std::string& name = named ? config.data().tokenizer() : config.model().path();
  if (name.empty()) {
    return {};
  }
  const auto found = find_model(name);
  const bool gone = named ? !found || !holds_tokenizer(*found) : !found;
  if (gone && checkpoint && holds_tokenizer(*checkpoint / "model")) {
    return *checkpoint / "model";
  }
  return found.value_or(name);
}

DataSettings data_settings(
    const RunConfig& config,
    const Model& model,
    const std::optional<std::filesystem::path>& checkpoint) {
  const RunConfig::Data& data = config.data();
  DataSettings settings;
  for (const std::string& file : data.files()) {
    settings.files.push_back({file, data.format()});
  }
  for (const RunConfig::Source& source : data.sources()) {
    settings.files.push_back(
        {.path = source.path(),
         .format = source.has_format() ? source.format() : data.format(),
         .weight = source.weight(),
         .option = "data.sources"});
  }
  if (data.has_sequence_length()) {
    settings.sequence_length = data.sequence_length();
  } else if (model.reads_tokens() && data.format() != "tensors") {
    settings.sequence_length = usual_sequence_length(model.max_positions());
  }
  settings.vocabulary_size = model.vocabulary_size();
  settings.input_size = model.input_size();
  settings.output_size = model.output_size();
  settings.tokenizer = texts_folder(config, checkpoint);
  settings.tokenizer_named = data.has_tokenizer();
  settings.chat_template = data.chat_template();
  settings.columns = columns(data.columns());
  if (data.has_loss_on()) {
    settings.loss_on = data.loss_on() == "all" ? LossOn::kAll
        : data.loss_on() == "last"             ? LossOn::kLast
                                               : LossOn::kAssistant;
  }
  settings.packing = data.packing();
  settings.seed = static_cast<uint64_t>(config.training().seed());
  if (data.validation().has_fraction()) {
    settings.validation_fraction = data.validation().fraction();
  }
  for (const std::string& file : data.validation().files()) {
    settings.validation_files.push_back(
        {.path = file, .format = data.format(), .option = "data.validation.files"});
  }
  return settings;
}

BatchSettings batch_settings(
    const RunConfig& config,
    const BatchSizes& sizes,
    const Mesh& mesh,
    int rank) {
  BatchSettings settings{.global_batch_size = sizes.global, .micro_batch_size = sizes.micro};
  settings.epochs = config.training().epochs();
  if (config.training().has_steps()) {
    settings.steps = config.training().steps();
  }
  settings.seed = static_cast<uint64_t>(config.training().seed());
  settings.shuffle = config.data().shuffle();
  settings.drop_last = config.data().drop_last();
  settings.rank = mesh.batch_rank(rank);
  settings.ranks = mesh.data();
  return settings;
}

std::vector<int64_t> micro_batch_candidates(const RunConfig& config, const BatchSizes& sizes) {
  const RunConfig::Training& training = config.training();
  const bool free = training.has_global_batch_size() && !training.has_micro_batch_size() &&
      !training.has_gradient_accumulation_steps();
  const bool budgeted =
      config.memory().has_device_budget() || config.activation_checkpointing().policy() == "auto";
  if (!free || !budgeted) {
    return {sizes.micro};
  }
  std::vector<int64_t> candidates; // divisors, each at least half as large again as the one before
  for (int64_t samples = 1; samples <= sizes.micro; ++samples) {
    const bool grows = candidates.empty() || 2 * samples >= 3 * candidates.back();
    if (sizes.micro % samples == 0 && (grows || samples == sizes.micro)) {
      candidates.push_back(samples);
    }
  }
  return candidates;
}

std::vector<RunConfig::Parallel> parallel_candidates(const RunConfig& config, int ranks) {
  const RunConfig::Parallel& given = config.parallel();
  if (ranks == 1 || config.activation_checkpointing().policy() != "auto") {
    return {given};
  }
  std::vector<RunConfig::Parallel> candidates;
  for (int zero = 0; zero <= 3; ++zero) {
    if (given.has_zero() && given.zero() != zero) {
      continue;
    }
    candidates.push_back(given);
    candidates.back().set_zero(zero);
  }
  const bool free = !given.has_prefetch() && !given.has_reshard_after_forward();
  if (candidates.back().zero() == 3 && free) {
    RunConfig::Parallel other = candidates.back();
    other.set_reshard_after_forward(false);
    candidates.insert(candidates.end() - 1, other);
    other = candidates.back();
    other.set_prefetch(0);
    candidates.push_back(other);
  }
  return candidates;
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

OptimizerSettings optimizer_settings(const RunConfig::Optimizer& config) {
  OptimizerSettings settings{.name = config.name()};
  settings.beta1 = config.betas(0);
  settings.beta2 = config.betas(1);
  settings.eps = config.eps();
  settings.momentum = config.momentum();
  return settings;
}

StatePrecision state_precision(const RunConfig::Precision& config) {
  const auto dtype = [](const std::string& name) {
    return name == "bf16" ? at::kBFloat16 : at::kFloat;
  };
  return {
      .master = config.master() != "none",
      .gradients = dtype(config.gradients()),
      .moments = dtype(config.moments())};
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

LossScaling loss_scaling(const RunConfig::LossScaling& config) {
  LossScaling settings;
  if (config.has_fixed()) {
    settings.fixed = config.fixed();
  }
  settings.initial = config.initial();
  settings.growth_factor = config.growth_factor();
  settings.backoff_factor = config.backoff_factor();
  settings.growth_interval = config.growth_interval();
  settings.hysteresis = config.hysteresis();
  settings.minimum = config.minimum();
  return settings;
}

Trainer::Settings trainer_settings(const RunConfig& config, int64_t steps) {
  Trainer::Settings settings;
  settings.seed = static_cast<uint64_t>(config.training().seed());
  const auto schedule =
      std::make_shared<LearningRateSchedule>(schedule_settings(config.scheduler(), steps));
  if (config.precision().compute() == "fp16") {
    settings.loss_scaling = loss_scaling(config.precision().loss_scaling());
  }
  const double peak = config.optimizer().learning_rate();
  settings.learning_rate = [schedule, peak](int64_t updates) {
    return peak * schedule->factor(updates);
  };
  if (config.optimizer().has_max_grad_norm()) {
    settings.clip = [most = config.optimizer().max_grad_norm()](double norm) {
      return clip_factor(norm, most);
    };
  }
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

std::vector<std::vector<GroupRange>> parameter_groups(
    const RunConfig::Optimizer& config,
    const Chain& chain) {
  const ParameterGroups groups(group_rules(config), config.weight_decay(), trainable_names(chain));
  std::vector<std::vector<GroupRange>> all;
  for (const auto& unit : chain.units) {
    all.push_back(
        unit->trainable() ? groups.ranges(*unit, 0, unit->numel()) : std::vector<GroupRange>());
  }
  return all;
}

} // namespace palimpsest
