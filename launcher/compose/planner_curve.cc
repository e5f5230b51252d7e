#include <palimpsest/launcher/compose/planner_curve.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/memory/planners/planner.h>

#include <algorithm>

namespace palimpsest {
namespace {

PlannerPoint point(std::string planner, std::string setting, const PlanReport& report) {
  return {
      .planner = std::move(planner),
      .setting = std::move(setting),
      .peak_bytes = report.peak(TierId::kDevice),
      .seconds = report.seconds};
}

/// From the least to the most, the most included.
std::vector<int64_t> between(int64_t least, int64_t most, int count) {
  std::vector<int64_t> budgets = {least};
  for (int part = 1; part < count && most > least; ++part) {
    budgets.push_back(least + (most - least) * part / (count - 1));
  }
  return budgets;
}

} // namespace

std::vector<PlannerPoint> planner_curve(
    PlanBook& book,
    int micro_batches,
    const std::string& chosen,
    int budgets) {
  const CostChain chain = chain_of(book.plan(micro_batches)->job);
  std::vector<PlannerPoint> points;
  if (chain.size() > 0) {
    const int64_t everything = find_planner("none").plan(chain, kLargestBytes).peak;
    for (const Planner& planner : planners()) {
      const int64_t least = planner.plan(chain, kLargestBytes).least_budget;
      std::vector<Segments> known;
      for (const int64_t budget : between(least, std::max(least, everything), budgets)) {
        const Segments segments = block_segments(planner.plan(chain, budget).segments, chain);
        if (std::ranges::find(known, segments) == known.end()) {
          known.push_back(segments);
          points.push_back(point(
              planner.name,
              format_bytes(budget) + " a micro-batch",
              book.report_with(micro_batches, segments)));
        }
      }
    }
  }
  points.push_back(point(chosen, "this run", book.report(micro_batches)));
  points.back().chosen = true;
  return points;
}

} // namespace palimpsest
