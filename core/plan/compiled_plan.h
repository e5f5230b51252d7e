#pragma once

// A plan made ready for interpretation: its places numbered, its effects flat; private to
// core/plan.
//
//   CompiledPlan compiled(plan, job);
//   for (const PlaceUse& use : compiled.uses(index)) { copies[use.place] ... }

#include <palimpsest/core/plan/effects.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <span>
#include <vector>

namespace palimpsest {

/// An effect on a place of the plan, by number.
struct PlaceUse {
  int place = 0;
  Use use = Use::kReads;
};

class CompiledPlan {
 public:
  /// Numbers the places that the plan or its rank's persistent states name. Throws PlanError as
  /// effects() does.
  CompiledPlan(const StepPlan& plan, int pipeline_rank, const Job& job);

  const StepPlan& plan() const {
    return *plan_;
  }
  int pipeline_rank() const {
    return pipeline_rank_;
  }
  const std::vector<Place>& places() const {
    return places_;
  }
  std::span<const PlaceUse> uses(size_t op) const {
    return {uses_.data() + first_[op], uses_.data() + first_[op + 1]};
  }
  /// The number of a unit's place, or -1 where the plan never names it.
  int unit_place(SlotKind kind, int unit, TierId tier) const;
  /// Index of the last UPDATE or PUBLISH, or -1.
  int last_change() const {
    return last_change_;
  }

 private:
  int unit_index(SlotKind kind, int unit, TierId tier) const;

  const StepPlan* plan_;
  int pipeline_rank_;
  int units_;
  std::vector<Place> places_;
  std::vector<PlaceUse> uses_;
  std::vector<uint32_t> first_{0};
  std::vector<int> unit_places_;
  int last_change_ = -1;
};

} // namespace palimpsest
