#pragma once

// A chain given as numbers, planned without a model; and a model's measured costs as such a chain.
//
//   plan_chain({.chain = "chain.json", .budget = "8GiB"}, std::cout);
//   file.write(measured_chain(run.plans().cost()));

#include <palimpsest/core/plan/cost_model.h>

#include <iosfwd>
#include <string>

namespace palimpsest {

struct ChainPlanOptions {
  std::string chain; ///< path of the file
  std::string planner = "dynamic_programming";
  std::string budget; ///< bytes, also as 8GiB
  bool json = false;
};

/// Prints makespan, peak, least budget, the slots to which dynamic_programming rounded (if it did)
/// and operations. The plan has been replayed by simulate().
/// UserError where file, planner or budget are wrong; where no plan fits, after the JSON that says
/// so.
void plan_chain(const ChainPlanOptions& options, std::ostream& out);

/// The JSON that plan_chain() reads.
std::string measured_chain(const ModelCost& model);

} // namespace palimpsest
