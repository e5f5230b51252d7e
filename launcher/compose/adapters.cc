#include <palimpsest/launcher/compose/adapters.h>

#include <palimpsest/core/io/checkpoint_reader.h>

#include <fmt/format.h>

#include <map>
#include <utility>

namespace palimpsest {
namespace fs = std::filesystem;
namespace {

AdapterChoice choice_of(const RunConfig::Lora& lora) {
  AdapterChoice choice{
      .rank = lora.rank(),
      .alpha = lora.alpha(),
      .dropout = lora.dropout(),
      .rslora = lora.rslora(),
      .targets = {lora.target_modules().begin(), lora.target_modules().end()},
      .patterns = {}};
  for (const RunConfig::LoraPattern& pattern : lora.patterns()) {
    AdapterPattern& added = choice.patterns.emplace_back();
    added.match = pattern.match();
    if (pattern.has_rank()) {
      added.rank = pattern.rank();
    }
    if (pattern.has_alpha()) {
      added.alpha = pattern.alpha();
    }
  }
  return choice;
}

} // namespace

ChosenAdapters adapters_of(
    const RunConfig& config,
    const DecoderConfig& decoder,
    const std::optional<fs::path>& checkpoint) {
  ChosenAdapters chosen;
  if (!config.has_lora()) {
    return chosen;
  }
  const RunConfig::Lora& lora = config.lora();
  const std::vector<LinearDeclaration> layers = linear_layers(decoder);
  if (!lora.has_adapter()) {
    chosen.set = choose_adapters(choice_of(lora), layers);
    return chosen;
  }
  std::error_code error;
  if (!fs::exists(lora.adapter(), error) && checkpoint) {
    const HfFolderLayout kept = CheckpointReader(*checkpoint).model_layout();
    const std::string name(kPeftConfigName);
    if (const auto found = kept.small_files.find(name); found != kept.small_files.end()) {
      chosen.set =
          parse_peft_config(found->second, (*checkpoint / "model" / name).string(), layers);
      chosen.notes.push_back(fmt::format(
          "{} is gone: what adapters there are is taken from {}",
          lora.adapter(),
          checkpoint->string()));
    }
  }
  if (chosen.set.layers.empty()) {
    chosen.folder.emplace(lora.adapter(), layers);
    chosen.set = chosen.folder->adapters();
  }
  if (chosen.folder && chosen.set.dropout != lora.dropout()) {
    chosen.notes.push_back(fmt::format(
        "{} says lora_dropout {}; lora.dropout {} holds",
        lora.adapter(),
        chosen.set.dropout,
        lora.dropout()));
  }
  chosen.set.dropout = lora.dropout();
  return chosen;
}

std::string base_model_name(const RunConfig::Model& model) {
  if (!model.has_path()) {
    return {};
  }
  std::error_code error;
  const fs::path path = model.path();
  return fs::exists(path, error) ? fs::absolute(path).lexically_normal().string() : model.path();
}

} // namespace palimpsest
