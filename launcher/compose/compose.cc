#include <palimpsest/launcher/compose/compose.h>

#include <palimpsest/core/plan/drop.h>
#include <palimpsest/core/plan/step.h>
#include <palimpsest/memory/recompute/recompute_pass.h>
#include <palimpsest/offload/tiers/offload_pass.h>
#include <palimpsest/parallel/pipeline/point_to_point.h>
#include <palimpsest/parallel/pipeline/schedule_plan.h>
#include <palimpsest/parallel/sharding/gather.h>
#include <palimpsest/parallel/sharding/reduce.h>

namespace palimpsest {

std::vector<PlanPass> passes() {
  return {
      {"recompute", recompute_pass},
      {"point_to_point", point_to_point_pass},
      {"gather", gather_pass},
      {"reduce", reduce_pass},
      {"step", step_pass},
      {"offload", offload_pass},
      {"drop", drop_pass},
  };
}

Plans compose(const Job& job, const Schedule& schedule, const PlanOptions& options) {
  Plans plans = schedule_plans(schedule, job);
  for (const PlanPass& pass : passes()) {
    plans = pass.apply(plans, job, options);
  }
  return plans;
}

} // namespace palimpsest
