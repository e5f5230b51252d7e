#include <palimpsest/core/plan/compiled_plan.h>

namespace palimpsest {

CompiledPlan::CompiledPlan(const StepPlan& plan, int pipeline_rank, const Job& job)
    : plan_(&plan), pipeline_rank_(pipeline_rank),
      units_(static_cast<int>(job.model().units.size())),
      unit_places_(
          static_cast<size_t>((kSlotKinds - static_cast<int>(SlotKind::kParam)) * units_ * kTiers),
          -1) {
  std::vector<int> number(static_cast<size_t>(job.slot_count()) * kTiers, -1);
  const auto number_of = [&](const Place& place) {
    int& known = number
        [static_cast<size_t>(job.slot_id(place.slot)) * kTiers + static_cast<size_t>(place.tier)];
    if (known < 0) {
      known = static_cast<int>(places_.size());
      places_.push_back(place);
      if (!per_micro_batch(place.slot.kind)) {
        unit_places_[static_cast<size_t>(
            unit_index(place.slot.kind, place.slot.owner, place.tier))] = known;
      }
    }
    return known;
  };
  for (const PersistentPlace& state : job.persistent(pipeline_rank)) {
    number_of(state.place);
  }
  std::vector<Effect> table;
  for (size_t index = 0; index < plan.size(); ++index) {
    effects(plan[index], job, table);
    for (const Effect& effect : table) {
      uses_.push_back({number_of(effect.place), effect.use});
    }
    first_.push_back(static_cast<uint32_t>(uses_.size()));
    if (plan[index].kind == OpKind::kUpdate || plan[index].kind == OpKind::kPublish) {
      last_change_ = static_cast<int>(index);
    }
  }
}

int CompiledPlan::unit_index(SlotKind kind, int unit, TierId tier) const {
  const int kinds = static_cast<int>(kind) - static_cast<int>(SlotKind::kParam);
  return (kinds * units_ + unit) * kTiers + static_cast<int>(tier);
}

int CompiledPlan::unit_place(SlotKind kind, int unit, TierId tier) const {
  return unit_places_[static_cast<size_t>(unit_index(kind, unit, tier))];
}

} // namespace palimpsest
