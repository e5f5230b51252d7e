#pragma once

// The tokenizer files of a model folder, brought into one form.
//
//   const TokenizerFolder files = read_tokenizer_folder("Llama-3.2-1B");
//   files.tokenizer.at("model");                    // as tokenizer.json has it
//
// Read are tokenizer.json, or else vocab.json and merges.txt (GPT-2's and Qwen2's older form, told
// apart by "tokenizer_class"); tokenizer_config.json and special_tokens_map.json where they exist.

#include <palimpsest/core/data/tokenizer/added_tokens.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

struct TokenizerFolder {
  std::string file; ///< the main one, for messages
  nlohmann::json tokenizer; ///< in the form of tokenizer.json
  /// Those of tokenizer.json, then the others of tokenizer_config.json; their ids are checked by
  /// nobody yet.
  std::vector<AddedToken> added;
  /// The texts of "bos_token", "eos_token", "pad_token" and "unk_token", as far as they are set.
  std::map<std::string, std::string> roles;
  std::string roles_file; ///< where they stand, for messages
  std::optional<bool> add_bos; ///< tokenizer_config.json's word on the template
  std::optional<bool> add_eos;
};

/// UserError naming file and key: no tokenizer in the folder, or one whose files are malformed.
TokenizerFolder read_tokenizer_folder(const std::filesystem::path& folder);

} // namespace palimpsest
