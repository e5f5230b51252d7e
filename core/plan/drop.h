#pragma once

// The last pass: frees every place after the last use of each of its lives, except states at their
// home at the end.
//
//   plans = drop_pass(plans, job, options);
//
// A sent slot is freed when its receipt is known. After another asynchronous reader a DROP lags by
// `options.lag` timed operations, unless the place is needed again before: dropping at once would
// wait and undo the overlap.

#include <palimpsest/core/plan/plan_pass.h>

namespace palimpsest {

Plans drop_pass(const Plans& plans, const Job& job, const PlanOptions& options);

} // namespace palimpsest
