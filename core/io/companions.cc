#include <palimpsest/core/io/companions.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>

#include <array>
#include <string_view>

namespace palimpsest {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kAdditionalTemplates = "additional_chat_templates";

constexpr std::array<std::string_view, 12> kNames = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
};

} // namespace

std::map<std::string, std::string> read_companions(const fs::path& folder) {
  std::map<std::string, std::string> files;
  std::error_code error;
  for (const std::string_view name : kNames) {
    if (fs::is_regular_file(folder / name, error)) {
      files.emplace(name, read_file(folder / name));
    }
  }
  const fs::path templates = folder / kAdditionalTemplates;
  if (fs::is_directory(templates, error)) {
    try {
      for (const fs::directory_entry& entry : fs::recursive_directory_iterator(templates)) {
        if (entry.is_regular_file()) {
          files.emplace(entry.path().lexically_relative(folder).string(), read_file(entry.path()));
        }
      }
    } catch (const fs::filesystem_error& failure) {
      throw EnvironmentError("cannot list {}: {}", templates.string(), failure.code().message());
    }
  }
  return files;
}

} // namespace palimpsest
