#pragma once

// Files that a verb is told to write: each thing needs one of its own.
//
//   require_different_files("stack", {{"the config", "run.yaml"}, {"--json", json}, {"--csv", csv}});

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

struct NamedFile {
  std::string name; ///< "--json"
  std::string path; ///< empty: not asked for
};

/// UserError naming the first two that are one file, however their paths are written. A device such
/// as /dev/null takes anything.
void require_different_files(std::string_view verb, const std::vector<NamedFile>& files);

} // namespace palimpsest
