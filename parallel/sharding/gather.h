#pragma once

// The pass of sharded parameters (ZeRO-3): GATHER and RELEASE around any compute that reads
// parameters, reruns included.
//
//   plans = gather_pass(plans, job, options);
//
// Up to `options.window` bytes stay gathered or are gathered ahead; what is needed last is released
// first; one operation's own units always fit. Nothing to do where parameters are whole.

#include <palimpsest/core/plan/plan_pass.h>

namespace palimpsest {

Plans gather_pass(const Plans& plans, const Job& job, const PlanOptions& options);

} // namespace palimpsest
