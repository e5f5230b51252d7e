#include <palimpsest/memory/planners/planner.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/memory/planners/policy_planners.h>
#include <palimpsest/memory/recompute/policies.h>

namespace palimpsest {

std::vector<Planner> planners() {
  std::vector<Planner> all;
  for (const Policy& policy : policies()) {
    all.push_back(policy_planner(policy.name, policy.help));
  }
  all.push_back({"chen_greedy", "runs of stages whose tapes fill a share of it", chen_greedy});
  all.push_back({"revolve", "binomial checkpointing, best for equal stages", revolve});
  all.push_back({"dynamic_programming", "the fastest persistent plan", dynamic_programming});
  return all;
}

Planner find_planner(std::string_view name) {
  std::string names;
  for (const Planner& planner : planners()) {
    if (planner.name == name) {
      return planner;
    }
    names += (names.empty() ? "" : ", ") + planner.name;
  }
  throw UserError("planner '{}' is unknown; choose one of {}", name, names);
}

} // namespace palimpsest
