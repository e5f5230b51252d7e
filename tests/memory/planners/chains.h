#pragma once

// Chains for tests of planners: the published cases, and drawn ones.

#include <palimpsest/core/plan/cost_chain.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace palimpsest::testing {

/// What one budget allows: the makespan of the best persistent plan, or none.
struct CurvePoint {
  int64_t budget = 0; ///< holds from here to the next point
  std::optional<double> makespan{};
};

struct RotorCase {
  std::string id;
  CostChain chain;
  std::vector<CurvePoint> curve;
  double all_tapes_makespan = 0;
  int64_t all_tapes_peak = 0;
  int64_t least_budget = 0;
  /// (name of the operation, stage from 1; 0 for the loss), where the case has a plan.
  std::vector<std::pair<std::string, int>> schedule;
  int64_t schedule_peak = 0;

  std::optional<double> optimum(int64_t budget) const;
};

CostChain chain_from(const nlohmann::json& rotor_case);
std::vector<RotorCase> rotor_cases();

struct DrawnChain {
  int least_stages = 1;
  int most_stages = 6;
  bool lean = false; ///< some stages have a lean tape too
  int largest = 6; ///< of a size, in bytes
};

/// Small whole bytes and seconds.
CostChain draw_chain(std::mt19937_64& draw, const DrawnChain& shape);

/// Equal stages.
CostChain equal_chain(int stages, int64_t output, int64_t tape);

} // namespace palimpsest::testing
