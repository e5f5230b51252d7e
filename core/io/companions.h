#pragma once

// The small files of a model folder that belong to the model but are no weights: tokenizer,
// generation config, chat templates.
//
//   const std::map<std::string, std::string> files = read_companions("Llama-3.2-1B");
//   files.at("tokenizer.json");                      // its bytes

#include <filesystem>
#include <map>
#include <string>

namespace palimpsest {

/// The bytes of those that the folder has, by their names relative to it. config.json is not among
/// them. EnvironmentError where one cannot be read.
std::map<std::string, std::string> read_companions(const std::filesystem::path& folder);

} // namespace palimpsest
