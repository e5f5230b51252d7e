#pragma once

// `palimpsest plan CONFIG --hardware H --world N`: the layouts that train a model fastest on a
// cluster that need not be there, and the smallest that can train it.
//
//   plan_world({.config = "run.yaml", .hardware = "h100-80", .world = 1024}, std::cout);

#include <palimpsest/launcher/compose/world_plan.pb.h>
#include <palimpsest/launcher/compose/world_search.h>

#include <iosfwd>
#include <string>
#include <vector>

namespace palimpsest {

struct WorldPlanOptions {
  std::string config;
  std::vector<std::string> overrides{};
  std::string hardware; ///< a built-in name or a file
  int world = 1;
  bool json = false;
};

/// Nothing is run, and no data file is opened. Prints also where no layout fits in this world; then
/// ends with a UserError that names the smallest that does.
void plan_world(const WorldPlanOptions& options, std::ostream& out);

/// `layouts` may be empty, `smallest` null.
WorldPlanReport world_plan_report(
    const WorldSearch& search,
    int world,
    const std::vector<WorldLayout>& layouts,
    const WorldLayout* smallest);

/// The report as tables for the terminal.
std::string describe_world(const WorldPlanReport& report);

} // namespace palimpsest
