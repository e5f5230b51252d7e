#include <palimpsest/launcher/cli/output_files.h>

#include <palimpsest/core/base/error.h>

#include <filesystem>
#include <map>

namespace palimpsest {

void require_different_files(std::string_view verb, const std::vector<NamedFile>& files) {
  namespace fs = std::filesystem;
  std::map<fs::path, std::string> names;
  for (const NamedFile& file : files) {
    std::error_code error;
    const fs::path real = fs::weakly_canonical(fs::absolute(file.path, error), error);
    if (file.path.empty() || error || fs::is_other(real, error)) {
      continue; // what cannot be resolved cannot be written either, which is said there
    }
    const auto [known, is_new] = names.emplace(real, file.name);
    if (!is_new) {
      throw UserError(
          "{}: {} and {} are one file, {}; give each its own",
          verb,
          known->second,
          file.name,
          file.path);
    }
  }
}

} // namespace palimpsest
