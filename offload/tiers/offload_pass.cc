#include <palimpsest/offload/tiers/offload_pass.h>

#include <palimpsest/core/plan/life.h>

#include <algorithm>

namespace palimpsest {
namespace {

/// Where STASHes and FETCHes go in one plan.
class Mover {
 public:
  Mover(const StepPlan& plan, int rank, const Job& job, int read_ahead)
      : rank_(rank), job_(job), read_ahead_(read_ahead), clock_{0} {
    for (int index = 0; index < static_cast<int>(plan.size()); ++index) {
      const bool timed = is_timed(plan[static_cast<size_t>(index)].kind);
      clock_.push_back(clock_.back() + timed);
      if (timed) {
        timed_.push_back(index);
      }
    }
  }

  void move(const PlaceUses& place_uses, Insertions& insertions) const {
    const auto& [place, uses] = place_uses;
    const TierId tier = resting_tier(place.slot, job_.placement());
    if (place.tier != TierId::kDevice || tier == TierId::kDevice) {
      return;
    }
    const bool persistent = job_.is_persistent({place.slot, tier}, rank_);
    bool here = !persistent; // on the device
    bool current = persistent; // the tier's copy is there and not stale
    int held = -1;
    for (size_t nth = 0; nth < uses.size(); ++nth) {
      const Touch& use = uses[nth];
      const Touch* following = nth + 1 < uses.size() ? &uses[nth + 1] : nullptr;
      if (!here && !use.begins) {
        const int fetch = std::max(held + 1, std::min(use.index, ahead_of(use.index)));
        insertions.before(static_cast<size_t>(fetch), Op::fetch(place.slot, tier));
      }
      here = true;
      current = current && !use.writes;
      held = std::max(held, use.until);
      const bool far = following != nullptr && !following->begins && !use.ends &&
          clock(following->index) - clock(held) > read_ahead_ + 1;
      if (far || (persistent && following == nullptr)) {
        if (!current) {
          insertions.after(static_cast<size_t>(held), Op::stash(place.slot, tier));
        }
        here = false;
        current = true;
      }
    }
  }

 private:
  /// Timed operations before this one.
  int clock(int index) const {
    return clock_[static_cast<size_t>(index)];
  }

  /// The timed operation that is read_ahead before `index`.
  int ahead_of(int index) const {
    const auto wanted = static_cast<size_t>(std::max(0, clock(index) - read_ahead_));
    return wanted < timed_.size() ? timed_[wanted] : index;
  }

  int rank_;
  const Job& job_;
  int read_ahead_;
  std::vector<int> clock_;
  std::vector<int> timed_;
};

} // namespace

TierId resting_tier(const Slot& slot, const Placement& placement) {
  switch (slot.kind) {
    case SlotKind::kValue:
    case SlotKind::kTape:
    case SlotKind::kWeightJobs:
      return slot.owner == kLoader ? TierId::kDevice : placement.activations;
    case SlotKind::kParamShard:
      return placement.parameters;
    case SlotKind::kOptimizerState:
      return placement.optimizer;
    case SlotKind::kGradShard:
    case SlotKind::kGradBuffer:
      return placement.gradients;
    case SlotKind::kGrad:
    case SlotKind::kParam:
      return TierId::kDevice;
  }
  return TierId::kDevice;
}

Plans offload_pass(const Plans& plans, const Job& job, const PlanOptions& options) {
  const auto receipt = receipts(plans, job);
  Plans result;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const Mover mover(plans[rank], static_cast<int>(rank), job, options.read_ahead);
    Insertions insertions(plans[rank].size());
    for (const PlaceUses& uses : touches(plans[rank], receipt[rank], job)) {
      mover.move(uses, insertions);
    }
    result.push_back(insertions.into(plans[rank]));
  }
  return result;
}

} // namespace palimpsest
