#pragma once

// The small files of a model folder that belong to the model but are no weights: tokenizer,
// generation config, chat templates.
//
//   for (const std::filesystem::path& file : companion_files("Llama-3.2-1B")) {
//     …                                              // "tokenizer.json", relative to the folder
//   }

#include <filesystem>
#include <vector>

namespace palimpsest {

/// Those that the folder has, relative to it. config.json is not among them.
std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder);

} // namespace palimpsest
