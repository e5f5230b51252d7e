#include <palimpsest/core/plan/drop.h>

#include <palimpsest/core/plan/life.h>

#include <algorithm>

namespace palimpsest {
namespace {

/// Where DROPs go in one plan.
class Dropper {
 public:
  Dropper(const StepPlan& plan, int rank, const Job& job, int lag)
      : plan_(plan), rank_(rank), job_(job), lag_(lag) {
    for (int index = 0; index < static_cast<int>(plan.size()); ++index) {
      const OpKind kind = plan[static_cast<size_t>(index)].kind;
      if (is_timed(kind)) {
        timed_.push_back(index);
      } else if (kind == OpKind::kAgree && agree_ == 0) {
        agree_ = index;
      }
    }
  }

  void drop(const PlaceUses& place_uses, Insertions& insertions) const {
    const auto& [place, uses] = place_uses;
    if (place.slot.kind == SlotKind::kParam && job_.placement().shards_parameters()) {
      return; // RELEASE frees it
    }
    const bool persistent = job_.is_persistent(place, rank_);
    int held = 0;
    for (size_t nth = 0; nth < uses.size(); ++nth) {
      const Touch* following = nth + 1 < uses.size() ? &uses[nth + 1] : nullptr;
      held = std::max(held, uses[nth].until);
      const bool lives_on = !uses[nth].ends && following != nullptr && !following->begins;
      if (lives_on || (persistent && following == nullptr)) {
        continue;
      }
      // the old copy of a state at its home goes after AGREE
      const int last = persistent ? std::max(held, agree_) : held;
      insertions.after(
          static_cast<size_t>(lagged(last, following)), Op::drop(place.slot, place.tier));
    }
  }

 private:
  int lagged(int index, const Touch* following) const {
    if (lag_ == 0 || !is_asynchronous(plan_[static_cast<size_t>(index)].kind)) {
      return index;
    }
    const auto later = std::upper_bound(timed_.begin(), timed_.end(), index);
    const auto steps = std::min<std::ptrdiff_t>(lag_, timed_.end() - later);
    const int waited = steps > 0 ? later[steps - 1] : index;
    return following != nullptr ? std::min(waited, following->index - 1) : waited;
  }

  const StepPlan& plan_;
  int rank_;
  const Job& job_;
  int lag_;
  int agree_ = 0;
  std::vector<int> timed_;
};

} // namespace

Plans drop_pass(const Plans& plans, const Job& job, const PlanOptions& options) {
  const auto receipt = receipts(plans, job);
  Plans result;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const Dropper dropper(plans[rank], static_cast<int>(rank), job, options.lag);
    Insertions insertions(plans[rank].size());
    for (const PlaceUses& uses : touches(plans[rank], receipt[rank], job)) {
      dropper.drop(uses, insertions);
    }
    result.push_back(insertions.into(plans[rank]));
  }
  return result;
}

} // namespace palimpsest
