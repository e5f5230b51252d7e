#pragma once

// Of several plans the fastest that fits, and what the smallest needs.
//
//   Candidates candidates(chain, budget);
//   candidates.consider(segments);
//   return candidates.fastest("chen_greedy");        // throws InfeasibleBudget where none fits

#include <palimpsest/memory/planners/planner.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace palimpsest {

class Candidates {
 public:
  /// `chain` outlives this.
  Candidates(const CostChain& chain, int64_t budget) : chain_(chain), budget_(budget) {}

  /// Of equally fast ones the first counts. Returns its peak.
  int64_t consider(Segments segments);

  ChainPlan fastest(std::string_view planner) const;

 private:
  const CostChain& chain_;
  int64_t budget_;
  std::optional<ChainPlan> fastest_;
  std::optional<ChainPlan> smallest_;
};

} // namespace palimpsest
