#include <palimpsest/core/io/hub_cache.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace palimpsest {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxRefBytes = 4096;

std::optional<fs::path> from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<fs::path>(value);
}

/// NAME or ORG/NAME of letters, digits, '-', '_' and '.', not beginning with a mark.
bool is_hub_id(std::string_view name) {
  const size_t slash = name.find('/');
  const auto is_part = [](std::string_view part) {
    return !part.empty() && std::isalnum(static_cast<unsigned char>(part.front())) != 0 &&
        std::ranges::all_of(part, [](char c) {
          return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ||
              c == '.';
        });
  };
  return slash == std::string_view::npos
      ? is_part(name)
      : is_part(name.substr(0, slash)) && is_part(name.substr(slash + 1));
}

bool has_weights(const fs::path& snapshot) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(snapshot, error)) {
    const fs::path kind = entry.path().extension();
    if (kind == ".safetensors" || kind == ".bin") {
      return true;
    }
  }
  return false;
}

std::optional<fs::path> find_snapshot(const std::string& id, const fs::path& cache) {
  std::string folder = "models--" + id;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) {
    folder.replace(slash, 1, "--");
  }
  std::error_code error;
  const fs::path main = cache / folder / "refs" / "main";
  if (!fs::is_regular_file(main, error)) {
    return std::nullopt;
  }
  std::string commit = read_file(main, kMaxRefBytes);
  commit.erase(commit.find_last_not_of(" \r\n") + 1);
  const fs::path snapshot = cache / folder / "snapshots" / commit;
  const bool there = !commit.empty() && commit.find('/') == std::string::npos &&
      fs::exists(snapshot / "config.json", error) && has_weights(snapshot);
  return there ? std::optional(snapshot) : std::nullopt;
}

} // namespace

fs::path hub_cache() {
  if (const auto cache = from_environment("HF_HUB_CACHE")) {
    return *cache;
  }
  if (const auto home = from_environment("HF_HOME")) {
    return *home / "hub";
  }
  if (const auto caches = from_environment("XDG_CACHE_HOME")) {
    return *caches / "huggingface" / "hub";
  }
  return from_environment("HOME").value_or("/") / ".cache" / "huggingface" / "hub";
}

std::optional<fs::path> find_model(const std::string& name, const fs::path& cache) {
  std::error_code error;
  if (fs::exists(name, error)) {
    return name;
  }
  return is_hub_id(name) ? find_snapshot(name, cache) : std::nullopt;
}

bool means_path(const std::string& name) {
  std::error_code error;
  const fs::path path = name;
  const fs::path folder = path.parent_path();
  const fs::path ending = path.extension();
  return !is_hub_id(name) || ending == ".yaml" || ending == ".yml" || ending == ".json" ||
      folder == "runs" || (!folder.empty() && fs::is_directory(folder, error));
}

fs::path resolve_model(const std::string& name, const fs::path& cache, std::string_view option) {
  if (auto found = find_model(name, cache)) {
    return *found;
  }
  if (means_path(name)) {
    throw UserError("{}: {} is not there; give a Hugging Face model folder", option, name);
  }
  throw UserError(
      "{}: there is no folder {}, and the hub cache {} has no complete model of that id; "
      "download it with\n  hf download {}",
      option,
      name,
      cache.string(),
      name);
}

} // namespace palimpsest
