#include <palimpsest/core/config/schema.h>
#include <palimpsest/core/config/validate.h>

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace palimpsest {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::Message;

/// Two keys that say the same thing in different ways.
struct Exclusive {
  const char* first;
  const char* second;
};

constexpr Exclusive kExclusive[] = {
    {"training.epochs", "training.steps"},
    {"model.path", "model.preset"},
    {"model.path", "model.family"},
    {"model.hidden_sizes", "model.hidden_size"},
    {"model.hidden_sizes", "model.num_hidden_layers"},
    {"data.files", "data.sources"},
    {"data.validation.fraction", "data.validation.files"},
    {"scheduler.warmup_ratio", "scheduler.warmup_steps"},
    {"precision.loss_scaling.fixed", "precision.loss_scaling.initial"},
    {"precision.loss_scaling.fixed", "precision.loss_scaling.growth_factor"},
    {"precision.loss_scaling.fixed", "precision.loss_scaling.backoff_factor"},
    {"precision.loss_scaling.fixed", "precision.loss_scaling.growth_interval"},
    {"precision.loss_scaling.fixed", "precision.loss_scaling.hysteresis"},
    {"precision.loss_scaling.fixed", "precision.loss_scaling.minimum"},
    {"activation_checkpointing.recompute", "activation_checkpointing.count"},
    {"lora.adapter", "lora.rank"},
    {"lora.adapter", "lora.alpha"},
    {"lora.adapter", "lora.target_modules"},
    {"lora.adapter", "lora.rslora"},
    {"lora.adapter", "lora.patterns"},
};

/// A key that means something only for certain values of another.
struct OnlyWith {
  const char* key;
  const char* other;
  std::vector<std::string> values;
  bool decided_else = false; // with other values its default is not what holds
};

const std::vector<OnlyWith>& only_with() {
  static const std::vector<OnlyWith> all = {
      {"optimizer.betas", "optimizer.name", {"adamw"}},
      {"optimizer.eps", "optimizer.name", {"adamw"}},
      {"optimizer.momentum", "optimizer.name", {"sgd"}},
      {"scheduler.decay_ratio", "scheduler.name", {"wsd"}},
      {"scheduler.min_ratio", "scheduler.name", {"linear", "cosine", "wsd"}},
      {"activation_checkpointing.n", "activation_checkpointing.policy", {"every_n"}},
      {"activation_checkpointing.segments", "activation_checkpointing.policy", {"uniform"}},
      {"activation_checkpointing.recompute", "activation_checkpointing.policy", {"key_layers"}},
      {"activation_checkpointing.count", "activation_checkpointing.policy", {"key_layers"}},
      {"activation_checkpointing.tape",
       "activation_checkpointing.policy",
       {"none", "full", "every_n", "uniform", "sqrt", "key_layers"},
       /*decided_else=*/true},
      {"activation_checkpointing.keep_last_segment",
       "activation_checkpointing.policy",
       {"full", "every_n", "uniform", "sqrt", "key_layers"}},
      {"training.restart", "checkpoint.resume", {}},
      {"precision.master", "precision.compute", {"bf16"}},
      {"precision.loss_scaling.fixed", "precision.compute", {"fp16"}},
      {"precision.loss_scaling.initial", "precision.compute", {"fp16"}},
      {"precision.loss_scaling.growth_factor", "precision.compute", {"fp16"}},
      {"precision.loss_scaling.backoff_factor", "precision.compute", {"fp16"}},
      {"precision.loss_scaling.growth_interval", "precision.compute", {"fp16"}},
      {"precision.loss_scaling.hysteresis", "precision.compute", {"fp16"}},
      {"precision.loss_scaling.minimum", "precision.compute", {"fp16"}},
      {"parallel.replicate", "parallel.zero", {"1", "2", "3"}},
      {"parallel.shard", "parallel.zero", {"1", "2", "3"}},
      {"model.rope_scaling.factor",
       "model.rope_scaling.rope_type",
       {"linear", "llama3", "dynamic", "yarn"}},
      {"model.rope_scaling.original_max_position_embeddings",
       "model.rope_scaling.rope_type",
       {"llama3", "dynamic", "yarn"}},
      {"model.rope_scaling.low_freq_factor", "model.rope_scaling.rope_type", {"llama3"}},
      {"model.rope_scaling.high_freq_factor", "model.rope_scaling.rope_type", {"llama3"}},
      {"model.rope_scaling.attention_factor", "model.rope_scaling.rope_type", {"yarn"}},
      {"model.rope_scaling.beta_fast", "model.rope_scaling.rope_type", {"yarn"}},
      {"model.rope_scaling.beta_slow", "model.rope_scaling.rope_type", {"yarn"}},
      {"model.rope_scaling.mscale", "model.rope_scaling.rope_type", {"yarn"}},
      {"model.rope_scaling.mscale_all_dim", "model.rope_scaling.rope_type", {"yarn"}},
      {"model.rope_scaling.truncate", "model.rope_scaling.rope_type", {"yarn"}},
  };
  return all;
}

/// Keys of which at least one must be given where another has a certain value.
struct Needs {
  const char* key;
  const char* value;
  std::vector<std::string> any_of;
};

const std::vector<Needs>& needs() {
  static const std::vector<Needs> all = {
      {"activation_checkpointing.policy", "every_n", {"activation_checkpointing.n"}},
      {"activation_checkpointing.policy",
       "key_layers",
       {"activation_checkpointing.recompute", "activation_checkpointing.count"}},
      {"offload.optimizer", "disk", {"offload.directory"}},
      {"offload.parameters", "disk", {"offload.directory"}},
      {"offload.gradients", "disk", {"offload.directory"}},
      {"offload.activations", "disk", {"offload.directory"}},
      {"model.rope_scaling.rope_type", "linear", {"model.rope_scaling.factor"}},
      {"model.rope_scaling.rope_type", "dynamic", {"model.rope_scaling.factor"}},
      {"model.rope_scaling.rope_type", "yarn", {"model.rope_scaling.factor"}},
      {"model.rope_scaling.rope_type", "llama3", {"model.rope_scaling.factor"}},
      {"model.family", "mlp", {"model.input_size"}},
      {"model.family", "mlp", {"model.hidden_size", "model.hidden_sizes"}},
      {"model.family", "mlp", {"model.output_size"}},
      {"model.family", "mlp", {"model.num_hidden_layers", "model.hidden_sizes"}},
  };
  return all;
}

/// Shape keys that a family has no use for. With a path only what the folder's config.json leaves
/// open may be given.
const std::vector<std::string> kMlpKeys = {
    "input_size",
    "output_size",
    "hidden_size",
    "hidden_sizes",
    "num_hidden_layers",
    "hidden_act",
    "initializer_range"};
const std::vector<std::string> kBesidePath = {"attention_dropout", "dropout", "embedding_dropout"};

/// What the decoders need, and have no use for beside the sizes of an mlp.
const std::vector<std::string> kDecoderNeeds =
    {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"};
const std::vector<std::string> kNoDecoderKeys = {"input_size", "output_size", "hidden_sizes"};

struct DecoderKeys {
  const char* family;
  std::vector<std::string> without;
};

const std::vector<DecoderKeys>& decoder_keys() {
  static const std::vector<DecoderKeys> all = {
      {"llama", {"sliding_window", "max_window_layers"}},
      {"mistral", {"attention_bias", "mlp_bias", "max_window_layers"}},
      {"qwen2", {"attention_bias", "mlp_bias"}},
      {"qwen3", {"mlp_bias"}},
      {"gemma", {"mlp_bias", "sliding_window", "max_window_layers"}},
      {"gpt2",
       {"num_key_value_heads",
        "head_dim",
        "rope_theta",
        "rope_scaling",
        "attention_bias",
        "mlp_bias",
        "sliding_window",
        "max_window_layers"}},
  };
  return all;
}

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::count(all.begin(), all.end(), one) > 0;
}

/// Somebody wrote it: it comes from no preset and is not derived.
bool mentioned(const Origins& origins, const std::string& key) {
  const auto origin = origins.find(key);
  return origin != origins.end() && origin->second.kind == Origin::Kind::kWritten;
}

/// Whether the other key of the rule has a value that the rule's key goes with.
bool holds(const OnlyWith& rule, const RunConfig& config) {
  const auto other = value_text(config, rule.other);
  return rule.values.empty() ? !other : other && contains(rule.values, *other);
}

bool is_decoder(const RunConfig::Model& model) {
  return model.has_family() && model.family() != "mlp";
}

/// Whether the model, as it is given, has the shape key.
bool has_shape_key(const RunConfig::Model& model, const std::string& shape) {
  if (shape == "path" || shape == "preset" || shape == "family") {
    return true;
  }
  if (model.has_path()) {
    return contains(kBesidePath, shape);
  }
  if (model.family() == "mlp") {
    return contains(kMlpKeys, shape);
  }
  const auto& all = decoder_keys();
  const auto keys = std::ranges::find(all, model.family(), &DecoderKeys::family);
  return !contains(kNoDecoderKeys, shape) && (keys == all.end() || !contains(keys->without, shape));
}

class Validator {
 public:
  Validator(const RunConfig& config, const Origins& origins, Problems& problems)
      : config_(config), origins_(origins), problems_(problems) {}

  void run() {
    missing(config_, "");
    for (const Exclusive& rule : kExclusive) {
      if (mentioned(origins_, rule.first) && mentioned(origins_, rule.second)) {
        contradict(rule.first, rule.second, "give one of them");
      }
    }
    for (const OnlyWith& rule : only_with()) {
      check_only_with(rule);
    }
    for (const Needs& rule : needs()) {
      check_needs(rule);
    }
    check_model();
    check_data();
    check_evaluation();
    check_scheduler();
    check_parallel();
    check_precision();
    check_lora();
  }

 private:
  /// Somebody wrote it, and not just what would hold anyway.
  bool given(const std::string& key) const {
    return mentioned(origins_, key) && value_text(config_, key) &&
        value_text(config_, key) != value_text(RunConfig::default_instance(), key);
  }

  void problem(std::string sentence) {
    problems_.push_back(std::move(sentence));
  }

  std::string name(std::string_view key) const {
    return name_key(key, origins_);
  }

  void contradict(std::string_view first, std::string_view second, std::string_view advice) {
    problem(fmt::format("{} and {} contradict each other; {}", name(first), name(second), advice));
  }

  /// Required keys, at any depth; what was mentioned but wrong is reported already.
  void missing(const Message& section, const std::string& path) {
    const auto& reflection = *section.GetReflection();
    const Descriptor& descriptor = *section.GetDescriptor();
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const auto& field = *descriptor.field(i);
      const std::string full = join_path(path, field.name());
      if (is_section(field) && field.is_repeated()) {
        for (int item = 0; item < reflection.FieldSize(section, &field); ++item) {
          missing(
              reflection.GetRepeatedMessage(section, &field, item),
              fmt::format("{}[{}]", full, item));
        }
      } else if (is_section(field) && reflection.HasField(section, &field)) {
        missing(reflection.GetMessage(section, &field), full);
      } else if (
          options_of(field).required() && !reflection.HasField(section, &field) &&
          !origins_.contains(full)) {
        problem(fmt::format("{} is missing; give {}", full, describe_allowed(field)));
      }
    }
  }

  void check_only_with(const OnlyWith& rule) {
    const bool asked = rule.decided_else ? mentioned(origins_, rule.key) : given(rule.key);
    if (!asked || holds(rule, config_)) {
      return;
    }
    if (rule.values.empty()) {
      contradict(rule.key, rule.other, "give one of them");
      return;
    }
    problem(fmt::format(
        "{} is given, but {} is {}; it belongs to {}",
        name(rule.key),
        name(rule.other),
        value_text(config_, rule.other).value_or("not set"),
        fmt::join(rule.values, ", ")));
  }

  void check_needs(const Needs& rule) {
    const bool there = std::any_of(rule.any_of.begin(), rule.any_of.end(), [&](const auto& key) {
      return origins_.contains(key);
    });
    if (value_text(config_, rule.key) == rule.value && !there) {
      problem(fmt::format(
          "{} is {}, which needs {}", name(rule.key), rule.value, fmt::join(rule.any_of, " or ")));
    }
  }

  void check_model() {
    const RunConfig::Model& model = config_.model();
    if (!model.has_path() && !model.has_family() && !origins_.contains("model.path") &&
        !origins_.contains("model.preset") && !origins_.contains("model.family")) {
      problem("model is missing; give model.path, model.preset or model.family");
    }
    for (const std::string& shape : key_names(*model.GetDescriptor())) {
      const std::string key = "model." + shape;
      if (!mentioned(origins_, key) || has_shape_key(model, shape)) {
        continue;
      }
      if (model.has_path()) {
        contradict("model.path", key, "the folder's config.json has the shape, leave the key out");
      } else if (model.has_family()) {
        contradict("model.family", key, "family " + model.family() + " has no such key");
      }
    }
    if (is_decoder(model)) {
      check_decoder_needs();
      check_heads();
    }
  }

  void check_decoder_needs() {
    for (const std::string& shape : kDecoderNeeds) {
      const bool optional = shape == "intermediate_size" && config_.model().family() == "gpt2";
      if (!optional) {
        const std::string family = config_.model().family();
        check_needs({"model.family", family.c_str(), {"model." + shape}});
      }
    }
  }

  void check_heads() {
    const RunConfig::Model& model = config_.model();
    if (!model.has_num_attention_heads() || !model.has_hidden_size()) {
      return; // reported as missing
    }
    const int64_t heads = model.num_attention_heads();
    if (!model.has_head_dim() && model.hidden_size() % heads != 0) {
      problem(fmt::format(
          "{} {} is no multiple of {} {}; change one or give model.head_dim",
          name("model.hidden_size"),
          model.hidden_size(),
          name("model.num_attention_heads"),
          heads));
    } else if (
        model.family() != "gpt2" &&
        (model.has_head_dim() ? model.head_dim() : model.hidden_size() / heads) % 2 != 0) {
      problem(fmt::format(
          "the width of a head ({}, or {} / {}) is odd; the rotary embedding turns pairs",
          name("model.head_dim"),
          name("model.hidden_size"),
          name("model.num_attention_heads")));
    }
    if (model.has_num_key_value_heads() && heads % model.num_key_value_heads() != 0) {
      problem(fmt::format(
          "{} {} is no multiple of {} {}",
          name("model.num_attention_heads"),
          heads,
          name("model.num_key_value_heads"),
          model.num_key_value_heads()));
    }
    if (model.rope_scaling().rope_type() == "llama3" &&
        model.rope_scaling().low_freq_factor() >= model.rope_scaling().high_freq_factor()) {
      problem(fmt::format(
          "{} {} must be below {} {}",
          name("model.rope_scaling.low_freq_factor"),
          number_text(model.rope_scaling().low_freq_factor()),
          name("model.rope_scaling.high_freq_factor"),
          number_text(model.rope_scaling().high_freq_factor())));
    }
    const bool stretches = model.rope_scaling().rope_type() == "dynamic";
    if (!stretches && config_.data().sequence_length() > model.max_position_embeddings()) {
      problem(fmt::format(
          "{} {} is longer than {} {}",
          name("data.sequence_length"),
          config_.data().sequence_length(),
          name("model.max_position_embeddings"),
          model.max_position_embeddings()));
    }
  }

  void check_data() {
    const RunConfig::Data& data = config_.data();
    if (!origins_.contains("data.files") && !origins_.contains("data.sources")) {
      problem("data is missing; give data.files (a list of files) or data.sources");
    } else if (!data.has_format() && !origins_.contains("data.format")) {
      problem(
          "data.format is missing, and the first file's ending does not tell it (.txt, .bin, "
          ".safetensors, .jsonl, .json); give text, tokens, tensors, messages, sharegpt, alpaca or "
          "prompt_completion");
    }
    const RunConfig::Validation& validation = data.validation();
    if (data.has_validation() && !validation.has_fraction() && validation.files().empty()) {
      problem(name("data.validation") + " holds nothing out; give fraction or files");
    }
  }

  void check_evaluation() {
    if (!config_.data().has_validation()) {
      for (const char* key : {"every", "samples", "keep_best", "patience", "min_improvement"}) {
        const std::string full = join_path("evaluation", key);
        if (given(full)) {
          problem(name(full) + " is given, but nothing is held out; give data.validation");
        }
      }
      return;
    }
    const auto check_beside = [&](const std::string& key, const std::string& other) {
      if (given(key) && !origins_.contains(other)) {
        problem(fmt::format("{} is given, but {} is not set", name(key), other));
      }
    };
    check_beside("evaluation.keep_best", "evaluation.every");
    check_beside("evaluation.patience", "evaluation.every");
    check_beside("evaluation.min_improvement", "evaluation.patience");
  }

  void check_scheduler() {
    const RunConfig::Scheduler& scheduler = config_.scheduler();
    const double decay = scheduler.name() == "wsd" ? scheduler.decay_ratio() : 0;
    if (scheduler.warmup_ratio() + decay > 1) {
      problem(fmt::format(
          "{} {} and {} {} add up to more than 1",
          name("scheduler.warmup_ratio"),
          number_text(scheduler.warmup_ratio()),
          name("scheduler.decay_ratio"),
          number_text(decay)));
    }
    const RunConfig::Training& training = config_.training();
    if (training.has_steps() && scheduler.warmup_steps() > training.steps()) {
      problem(fmt::format(
          "{} {} is more than {} {}",
          name("scheduler.warmup_steps"),
          scheduler.warmup_steps(),
          name("training.steps"),
          training.steps()));
    }
    if (config_.checkpoint().has_keep_last() && !config_.checkpoint().has_save_every()) {
      problem(name("checkpoint.keep_last") + " is given, but checkpoint.save_every is not set");
    }
  }

  void check_lora() {
    for (const RunConfig::LoraPattern& pattern : config_.lora().patterns()) {
      if (!pattern.has_rank() && !pattern.has_alpha()) {
        problem(fmt::format(
            "{}: the one that matches {} changes nothing; give it a rank or an alpha",
            name("lora.patterns"),
            pattern.match()));
      }
    }
  }

  void check_precision() {
    const RunConfig::LossScaling& scaling = config_.precision().loss_scaling();
    if (scaling.initial() < scaling.minimum()) {
      problem(fmt::format(
          "{} {} is below {} {}",
          name("precision.loss_scaling.initial"),
          number_text(scaling.initial()),
          name("precision.loss_scaling.minimum"),
          number_text(scaling.minimum())));
    }
  }

  void check_parallel() {
    const std::string& tier = config_.offload().parameters();
    const RunConfig::Parallel& parallel = config_.parallel();
    if ((tier == "host" || tier == "disk") && parallel.zero() < 3) {
      problem(fmt::format(
          "{} is {}, but {} is {}; parameters leave the device only as shards, which needs "
          "parallel.zero 3",
          name("offload.parameters"),
          tier,
          name("parallel.zero"),
          parallel.zero()));
    }
    const auto zero = origins_.find("parallel.zero");
    if (zero != origins_.end() && zero->second.given == "hybrid_shard" &&
        parallel.replicate() == 1 && !parallel.has_shard()) {
      problem(
          name("parallel.zero") +
          " is hybrid_shard, which needs parallel.replicate or parallel.shard");
    }
  }

  const RunConfig& config_;
  const Origins& origins_;
  Problems& problems_;
};

} // namespace

void validate(const RunConfig& config, const Origins& origins, Problems& problems) {
  Validator(config, origins, problems).run();
}

bool in_effect(const RunConfig& config, const Origins& origins, std::string_view key) {
  for (const Exclusive& rule : kExclusive) {
    const bool is_first = key == rule.first;
    if ((is_first || key == rule.second) &&
        mentioned(origins, is_first ? rule.second : rule.first)) {
      return false;
    }
  }
  for (const OnlyWith& rule : only_with()) {
    if (key == rule.key && !holds(rule, config)) {
      return false;
    }
  }
  constexpr std::string_view kModel = "model.";
  if (!key.starts_with(kModel)) {
    return true;
  }
  const std::string_view shape = key.substr(kModel.size());
  return has_shape_key(config.model(), std::string(shape.substr(0, shape.find('.'))));
}

std::string name_key(std::string_view key, const Origins& origins) {
  const auto origin = origins.find(std::string(key));
  return origin == origins.end() ? std::string(key)
                                 : fmt::format("{} ({})", key, origin->second.where);
}

} // namespace palimpsest
