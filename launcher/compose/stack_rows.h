#pragma once

// The rows of the memory benchmark: which settings each adds to those before it.
//
//   for (const StackRun& run : stack_rows(config, {.ranks = 2})) { ... }    // "baseline", "+ lean tape", ...
//
// A technique is one line of techniques(); what is not built yet has none.

#include <palimpsest/core/config/run_config.pb.h>

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

struct StackChoice {
  std::vector<std::string> order{}; ///< techniques as they are stacked; empty: all, as usual
  std::vector<std::string> only{}; ///< of these; empty: all
  int ranks = 2; ///< of the rows that share states; 1: such rows are left out unless they are named
};

struct StackRun {
  std::string name; ///< "+ lean tape"
  std::vector<std::string> overrides; ///< of the config: key=value
  int ranks = 1;
};

/// The names that `order` and `only` know, in their usual order.
std::vector<std::string> stack_techniques();

/// The baseline and a row for each technique, which keeps those before it. Throws UserError for a
/// name that is unknown, comes twice or could have no row, or a global batch that the ranks cannot
/// share.
std::vector<StackRun> stack_rows(const RunConfig& config, const StackChoice& choice);

} // namespace palimpsest
