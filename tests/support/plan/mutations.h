#pragma once

// Mutants of a plan: every deletion, duplicate and swap of neighbours, and drawn changes of single
// fields.
//
//   for (const auto& [kind, mutant] : mutations(plan, job, draw)) { ... }

#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <random>
#include <string>
#include <vector>

namespace palimpsest::testing {

struct Mutant {
  std::string kind;
  StepPlan plan;
};

/// All deletions, duplicates and swaps; up to three drawn changes of each operation's fields to
/// other legal values.
std::vector<Mutant> mutations(const StepPlan& plan, const Job& job, std::mt19937_64& draw);

} // namespace palimpsest::testing
