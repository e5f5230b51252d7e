#include <palimpsest/launcher/compose/generation_source.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/checkpoint_manifest.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/hub_cache.h>
#include <palimpsest/core/io/json.h>
#include <palimpsest/core/io/peft_folder.h>
#include <palimpsest/launcher/compose/trained_state.h>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhatToGive =
    "give a model's folder or hub id, an adapter's folder, a checkpoint, or a run's output folder "
    "or config";

constexpr std::array<const char*, 6> kKeys = {
    "precision.compute",
    "precision.frozen",
    "memory.device_budget",
    "data.tokenizer",
    "data.chat_template",
    "training.threads"};

/// The keys of a config that say what to generate from; the others say how to train.
void check_overrides(const std::vector<std::string>& overrides) {
  for (const std::string& override : overrides) {
    const std::string key = override.substr(0, override.find('='));
    if (std::ranges::find(kKeys, key) == kKeys.end()) {
      throw UserError(
          "generate: {} changes nothing here; these keys do: {}", key, fmt::join(kKeys, ", "));
    }
  }
}

class Finder {
 public:
  explicit Finder(const std::vector<std::string>& overrides) : overrides_(overrides) {}

  GenerationSource find(const std::string& model) const {
    if (!fs::exists(model)) {
      if (!find_model(model) && means_path(model)) {
        throw UserError("generate: {} is not there; {}", model, kWhatToGive);
      }
      return from_folder(resolve_model(model, hub_cache(), "generate"), std::nullopt);
    }
    if (!fs::is_directory(model)) {
      const RunConfig config = load_config(model, overrides_);
      return from_output(config.training().output(), config, model);
    }
    const fs::path folder = model;
    if (fs::exists(folder / kManifestName)) {
      return from_checkpoint(folder);
    }
    if (holds_model(folder)) {
      return from_folder(folder, std::nullopt);
    }
    return from_output(folder, std::nullopt, model);
  }

 private:
  /// `run`: the config of the run that wrote the folder, where it is known.
  GenerationSource from_folder(const fs::path& folder, const std::optional<RunConfig>& run) const {
    nlohmann::json config = {
        {"data", {{"files", {"none.txt"}}}}, // asked for, not read
        {"training", {{"steps", 1}}},
        {"optimizer", {{"learning_rate", 1}}}};
    GenerationSource source{.texts = folder, .name = folder.string()};
    const bool adapted = fs::exists(folder / kPeftConfigName);
    if (adapted) {
      const fs::path base = base_model(folder);
      config["model"]["path"] = base.string();
      config["lora"]["adapter"] = folder.string();
      source.name = fmt::format("{} with the adapters {}", base.string(), folder.string());
      if (!fs::exists(folder / "tokenizer.json")) {
        source.texts = base;
      }
    } else {
      config["model"]["path"] = folder.string();
      if (overrides("precision.frozen")) { // nothing is trained here: it holds all linear layers
        config["training"]["freeze"] = {"_proj|c_attn|c_fc"};
      }
    }
    if (run) {
      config["precision"]["compute"] = run->precision().compute();
      if (adapted && run->precision().has_frozen()) { // what the adapters were trained on
        config["precision"]["frozen"] = run->precision().frozen();
      }
      if (run->data().has_chat_template()) {
        config["data"]["chat_template"] = run->data().chat_template();
      }
    }
    source.config = load_config_text(config.dump(), "generate.json", overrides_);
    return with_texts(std::move(source));
  }

  GenerationSource from_checkpoint(const fs::path& folder) const {
    const CheckpointReader reader(folder);
    GenerationSource source{
        .config = load_config_text(reader.config_text(), folder / kRunConfigName, overrides_),
        .checkpoint = folder,
        .texts = folder / kModelFolderName,
        .name = "checkpoint " + folder.string()};
    return with_texts(std::move(source));
  }

  GenerationSource from_output(
      const fs::path& output,
      std::optional<RunConfig> run,
      const std::string& model) const {
    const std::optional<TrainedState> newest = newest_state(output);
    if (!newest) {
      const bool has_begun = read_run_id(output).has_value();
      throw UserError(
          "generate: {}{} holds neither a model nor a checkpoint{}",
          model,
          run ? fmt::format(" writes to {}, which", output.string()) : "",
          has_begun ? " yet: its run has saved none; let it end, or give it a checkpoint.save_every"
              : run ? fmt::format("; train it first: palimpsest train {}", model)
                    : fmt::format("; {}", kWhatToGive));
    }
    if (newest->is_checkpoint) {
      return from_checkpoint(newest->folder);
    }
    const auto checkpoints = list_checkpoints(output);
    if (!checkpoints.empty() && !has_base(newest->folder)) {
      return from_checkpoint(find_checkpoint(output));
    }
    if (!run && !checkpoints.empty()) {
      const fs::path& last = checkpoints.back().folder;
      run = load_config_text(CheckpointReader(last).config_text(), last / kRunConfigName);
    }
    return from_folder(newest->folder, run);
  }

  bool overrides(const std::string& key) const {
    return std::ranges::any_of(
        overrides_, [&](const std::string& override) { return override.starts_with(key + "="); });
  }

  /// base_model_name_or_path of an adapter's folder, where it names one.
  static std::optional<std::string> base_name(const fs::path& adapter) {
    const fs::path file = adapter / kPeftConfigName;
    const nlohmann::json config = parse_json(read_file(file), file.string());
    const auto base = config.find("base_model_name_or_path");
    return base != config.end() && base->is_string() ? std::optional(base->get<std::string>())
                                                     : std::nullopt;
  }

  /// Adapters of a model that was initialised at random have none but what checkpoints hold.
  static bool has_base(const fs::path& folder) {
    return !fs::exists(folder / kPeftConfigName) || base_name(folder);
  }

  static fs::path base_model(const fs::path& adapter) {
    const fs::path file = adapter / kPeftConfigName;
    const std::optional<std::string> given = base_name(adapter);
    if (!given) {
      throw UserError(
          "{}: base_model_name_or_path is missing: the folder or hub id of the model that the "
          "adapters belong to",
          file.string());
    }
    const std::string& name = *given;
    for (const fs::path& place : {fs::path(name), adapter / name}) {
      if (!name.empty() && fs::exists(place / "config.json")) {
        return place;
      }
    }
    const auto cached = fs::exists(name) ? std::nullopt : find_model(name);
    if (!cached) {
      throw UserError(
          "{}: base_model_name_or_path is {}, which is neither a model's folder nor a model's id "
          "in the local hub cache; correct it",
          file.string(),
          quote(name));
    }
    return *cached;
  }

  GenerationSource with_texts(GenerationSource source) const {
    if (overrides("data.tokenizer")) {
      const std::string& name = source.config.data().tokenizer();
      const auto folder = find_model(name);
      if (!folder) {
        throw UserError(
            "data.tokenizer: {} is neither a folder nor a model's id in the local hub cache", name);
      }
      source.texts = *folder;
    }
    return source;
  }

  const std::vector<std::string>& overrides_;
};

} // namespace

GenerationSource find_generation_source(
    const std::string& model,
    const std::vector<std::string>& overrides) {
  check_overrides(overrides);
  return Finder(overrides).find(model);
}

} // namespace palimpsest
