#include <palimpsest/launcher/compose/evaluation_target.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/hub_cache.h>
#include <palimpsest/core/io/peft_folder.h>
#include <palimpsest/launcher/compose/trained_state.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

/// A model folder in the place of the one that the config names; an adapter's beside it.
void use_model(RunConfig& config, const std::string& folder) {
  if (fs::exists(fs::path(folder) / kPeftConfigName)) {
    config.mutable_lora()->set_adapter(folder);
    return;
  }
  config.mutable_model()->Clear();
  config.mutable_model()->set_path(folder);
  if (config.has_lora() && config.training().freeze().empty()) { // then nothing is frozen any more
    config.mutable_precision()->clear_frozen();
  }
  config.clear_lora(); // trained into the model, or not part of it
}

/// The newest of what the run has written (a model that no folder can hold has checkpoints alone).
void use_newest(EvalTarget& target) {
  const fs::path output = target.config.training().output();
  const std::optional<TrainedState> newest = newest_state(output);
  if (!newest) {
    throw UserError(
        "eval: {} holds no trained model; train it first, or give --model or --checkpoint",
        output.string());
  }
  if (!newest->is_checkpoint) {
    target.model = newest->folder.string();
    return;
  }
  target.request.checkpoint = newest->folder;
  if (!newest->passed_over.empty()) {
    target.notes.push_back(
        fmt::format("{} is newer than {}", newest->folder.string(), newest->passed_over.string()));
  }
}

/// The trained model of a run: the one asked for, else the newest of its output folder.
void use_run(EvalTarget& target, const EvalOptions& options) {
  if (!options.checkpoint.empty()) {
    target.request.checkpoint = find_checkpoint(options.checkpoint);
  } else if (!options.model.empty()) {
    target.model = options.model;
  } else {
    use_newest(target);
  }
  if (target.request.checkpoint) {
    target.model = target.request.checkpoint->string();
  } else {
    use_model(target.config, target.model);
  }
}

/// What a run's own settings say of a folder that has none.
RunConfig config_of_model(const EvalOptions& options) {
  if (fs::exists(fs::path(options.target) / kPeftConfigName)) {
    throw UserError(
        "eval: {0} holds adapters alone; name their model, with lora.adapter={0}, or a run's "
        "config with --model {0}",
        options.target);
  }
  if (options.data.empty()) {
    throw UserError("eval: {} is a model without a config; give --data FILE ...", options.target);
  }
  nlohmann::json config = {
      {"model", {{"path", options.target}}},
      {"data", {{"files", options.data}}},
      {"optimizer", {{"learning_rate", 0}}}};
  if (!options.format.empty()) {
    config["data"]["format"] = options.format;
  }
  return load_config_text(config.dump(), "eval.json", options.overrides);
}

/// By its ending where none of the run's files has it, since then their format is not its own.
std::string format_of(
    const std::string& file,
    const EvalOptions& options,
    const RunConfig& config) {
  if (!options.format.empty()) {
    return options.format;
  }
  const auto same_ending = [&](const std::string& other) {
    return fs::path(other).extension() == fs::path(file).extension();
  };
  const RunConfig::Data& data = config.data();
  return std::ranges::any_of(data.files(), same_ending) ||
          std::ranges::any_of(data.validation().files(), same_ending)
      ? data.format()
      : "";
}

} // namespace

EvalTarget find_eval_target(const EvalOptions& options) {
  EvalTarget target;
  const fs::path path = options.target;
  const bool has_run = fs::is_directory(path) &&
      (fs::exists(path / kManifestName) || !list_checkpoints(path).empty());
  if (!options.model.empty() && !options.checkpoint.empty()) {
    throw UserError("eval: --model and --checkpoint contradict each other; give one of them");
  }
  if (fs::is_regular_file(path)) {
    target.config = load_config(path, options.overrides);
    use_run(target, options);
  } else if (!options.model.empty() || !options.checkpoint.empty()) {
    throw UserError(
        "eval: --model and --checkpoint go with a config, and {} is none; name the folder alone",
        options.target);
  } else if (has_run) {
    target.request.checkpoint = find_checkpoint(path);
    target.model = target.request.checkpoint->string();
    target.config = load_config_text(
        CheckpointReader(*target.request.checkpoint).config_text(),
        "the checkpoint's config",
        options.overrides);
  } else if (find_model(options.target)) {
    target.config = config_of_model(options);
    target.model = options.target;
  } else if (fs::exists(path)) {
    throw UserError(
        "eval: {} is no config, checkpoint, output folder with checkpoints, or model{}; give one "
        "of "
        "them",
        options.target,
        read_run_id(path) ? ": its run has saved none yet" : "");
  } else if (means_path(options.target)) {
    throw UserError(
        "eval: {} is not there; give a config, a checkpoint, an output folder with checkpoints, or "
        "a "
        "model",
        options.target);
  } else {
    resolve_model(options.target, hub_cache(), "eval"); // says what is missing
  }
  RunConfig::Training& training = *target.config.mutable_training();
  training.clear_global_batch_size(); // there are no steps
  training.clear_gradient_accumulation_steps();
  if (options.samples) {
    target.config.mutable_evaluation()->set_samples(*options.samples);
  }
  for (const std::string& file : options.data) {
    target.request.files.push_back(
        {.path = file, .format = format_of(file, options, target.config), .option = "--data"});
  }
  return target;
}

} // namespace palimpsest
