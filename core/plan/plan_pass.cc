#include <palimpsest/core/plan/plan_pass.h>

namespace palimpsest {

StepPlan Insertions::into(const StepPlan& plan) const {
  StepPlan result;
  for (size_t index = 0; index < plan.size(); ++index) {
    result.insert(result.end(), before_[index].begin(), before_[index].end());
    result.push_back(plan[index]);
    result.insert(result.end(), after_[index].begin(), after_[index].end());
  }
  return result;
}

} // namespace palimpsest
