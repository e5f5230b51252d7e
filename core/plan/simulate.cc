#include <palimpsest/core/plan/simulate.h>

#include <palimpsest/core/plan/simulation.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

std::string_view to_text(PlanCategory category) {
  return category == PlanCategory::kWorkspace ? "workspace"
                                              : to_text(static_cast<SlotKind>(category));
}

std::string_view to_text(Lane lane) {
  constexpr std::array<std::string_view, kLanes> kNames{
      "compute", "communication", "device to host", "host to device", "disk"};
  return kNames[static_cast<size_t>(lane)];
}

double RankReport::recompute_share() const {
  const double all = forward_flops + backward_flops + recompute_flops;
  return all > 0 ? recompute_flops / all : 0;
}

int64_t PlanReport::peak(TierId tier) const {
  int64_t most = 0;
  for (const RankReport& rank : ranks) {
    most = std::max(most, rank.peak[tier]);
  }
  return most;
}

WorldPlans spread(const Plans& plans, const Mesh& mesh) {
  check(
      plans.size() == static_cast<size_t>(mesh.pipeline),
      "{} plans for {} pipeline ranks",
      plans.size(),
      mesh.pipeline);
  WorldPlans world;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    world.push_back(&plans[static_cast<size_t>(mesh.pipeline_rank(rank))]);
  }
  return world;
}

PlanReport simulate(const WorldPlans& plans, const Job& job, const PlanBudget& budget) {
  return Simulation(plans, job, budget).run();
}

PlanReport simulate(const Plans& plans, const Job& job, const PlanBudget& budget) {
  return simulate(spread(plans, job.mesh()), job, budget);
}

Timeline trace(const WorldPlans& plans, const Job& job, int rank) {
  check(
      rank >= 0 && rank < static_cast<int>(plans.size()),
      "rank {} of {} plans",
      rank,
      plans.size());
  Timeline timeline;
  PlanReport report = Simulation(plans, job, {}, {rank, &timeline}).run();
  timeline.seconds = report.seconds;
  timeline.rank = std::move(report.ranks.at(static_cast<size_t>(rank)));
  return timeline;
}

PlanBudget promised(const PlanReport& report) {
  PlanBudget budget;
  for (const RankReport& rank : report.ranks) {
    budget.push_back(rank.peak);
  }
  return budget;
}

} // namespace palimpsest
