#pragma once

// What a budget leaves to plans. Beside what a plan counts, a rank holds the samples of micro-batches
// that it has not loaded yet, and what nobody counts: norms, flags, what libraries ask for.
//
//   const int64_t counted = peak_with_samples(plans, simulate(plans, job), job);
//   if (counted > room_for_plans(budget)) {
//     tell(least_budget(counted));       // has room for it, and one byte less has not
//   }

#include <palimpsest/core/plan/simulate.h>

#include <cstdint>
#include <optional>

namespace palimpsest {

/// Of a budget, the bytes that a plan may count where so many are held before it and outlive it; below
/// 0 where there are none.
int64_t room_for_plans(int64_t budget, int64_t already_held = 0);

/// The least budget with room for so many bytes.
int64_t least_budget(int64_t counted, int64_t already_held = 0);

/// The most that any rank holds of what plans count and of samples: those of all micro-batches are
/// there before the plan loads the first, and until it ends. `micro_batches`: of the step, where the
/// plans are of its first ones only.
int64_t peak_with_samples(
    const Plans& plans,
    const PlanReport& report,
    const Job& job,
    std::optional<int64_t> micro_batches = {});

} // namespace palimpsest
