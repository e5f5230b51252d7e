#include <palimpsest/core/plan/step.h>

namespace palimpsest {

Plans step_pass(const Plans& plans, const Job& job, const PlanOptions&) {
  Plans result = plans;
  if (!job.training()) {
    return result;
  }
  for (size_t rank = 0; rank < result.size(); ++rank) {
    StepPlan& plan = result[rank];
    plan.push_back(Op::agree());
    for (const int unit : job.trained_units(static_cast<int>(rank))) {
      plan.push_back(Op::update(unit));
      if (job.placement().publishes()) {
        plan.push_back(Op::publish(unit));
      }
    }
    plan.push_back(Op::commit());
  }
  return result;
}

} // namespace palimpsest
