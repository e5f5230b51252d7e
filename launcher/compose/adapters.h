#pragma once

// The adapters that a config's lora section asks for.
//
//   const ChosenAdapters chosen = adapters_of(config, decoder, checkpoint);
//   settings.decoder_options.adapters = chosen.set;
//   if (chosen.folder) { load_adapters(*chosen.folder, chain, source); }

#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/io/adapter_set.h>
#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/io/peft_folder.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

struct ChosenAdapters {
  AdapterSet set; // empty without lora
  std::optional<PeftFolder> folder; // of lora.adapter, where its values are
  std::vector<std::string> notes;
};

/// UserError where a target or pattern is no layer's, or lora.adapter does not fit the model. Of a run
/// that goes on from `checkpoint`, what that keeps of adapter_config.json serves where lora.adapter is
/// gone.
ChosenAdapters adapters_of(
    const RunConfig& config,
    const DecoderConfig& decoder,
    const std::optional<std::filesystem::path>& checkpoint);

/// What adapter_config.json says of the base: its folder or hub id.
std::string base_model_name(const RunConfig::Model& model);

} // namespace palimpsest
