#pragma once

// The small tokenizers of tests/data/tokenizers with the reference library's answers.

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/tokenizer/tokenizer.h>

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest {

using Ids = std::vector<int32_t>;

inline constexpr std::array kGoldenTokenizers{
    "gpt2-512",
    "gpt2-2000",
    "llama2-512",
    "llama2-2000",
    "llama3-512",
    "llama3-2000",
    "qwen2-512",
    "qwen2-2000"};

inline std::filesystem::path golden_folder(const std::string& name) {
  return std::filesystem::path(PALIMPSEST_TEST_DATA) / "tokenizers" / name;
}

/// The cases of a file in a tokenizer's folder.
inline nlohmann::json golden_cases(const std::string& name, const std::string& file) {
  return nlohmann::json::parse(read_file(golden_folder(name) / file)).at("cases");
}

inline nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(read_file(golden_folder(name) / "tokenizer.json"));
}

inline Ids encoded(
    const Tokenizer& tokenizer,
    const std::string& text,
    SpecialTokens special = SpecialTokens::kNone) {
  Encoder encoder(tokenizer);
  Ids ids;
  encoder.encode(text, special, ids);
  return ids;
}

} // namespace palimpsest
