#pragma once

// The compute-only plan of one pipeline rank: LOAD, FORWARD, BACKWARD, every tape full.
//
//   StepPlan plan = schedule_plan(schedule.turns(rank, ranks, job.micro_batches()), job);

#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>
#include <palimpsest/core/plan/schedule.h>

#include <vector>

namespace palimpsest {

StepPlan schedule_plan(const std::vector<Turn>& turns, const Job& job);

/// Of every pipeline rank; in evaluation without the backward turns. Throws UserError where the
/// schedule wants another number of stages than the job has.
Plans schedule_plans(const Schedule& schedule, const Job& job);

} // namespace palimpsest
