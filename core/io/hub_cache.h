#pragma once

// Models by their hub id, where transformers' downloads lie on this machine.
//
//   std::filesystem::path folder = resolve_model("Qwen/Qwen2.5-0.5B");      // .../snapshots/<commit>
//   std::filesystem::path local = resolve_model("runs/a/model");            // the folder itself
//
// Nothing is ever downloaded. The layout is that of huggingface_hub: models--ORG--NAME with
// refs/main, which names a folder of snapshots/.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace palimpsest {

/// The first of $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub and
/// ~/.cache/huggingface/hub whose variable is set and not empty.
std::filesystem::path hub_cache();

/// What `name` stands for: a path where something is, otherwise the snapshot of main of the model
/// with that id in `cache`. Empty where there is neither, or the snapshot lacks config.json or
/// any weights.
std::optional<std::filesystem::path> find_model(
    const std::string& name,
    const std::filesystem::path& cache = hub_cache());

/// Of a name that find_model() does not find: whether a path is meant, since it is no hub id, ends
/// like a config, or lies in a folder that is there or in runs/, where runs write by default.
bool means_path(const std::string& name);

/// As find_model(); a missing one is a UserError, with the command that downloads it where an id may
/// be meant. `option`: what named it.
std::filesystem::path resolve_model(
    const std::string& name,
    const std::filesystem::path& cache = hub_cache(),
    std::string_view option = "model.path");

} // namespace palimpsest
