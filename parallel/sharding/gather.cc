#include <palimpsest/parallel/sharding/gather.h>

#include <palimpsest/core/plan/effects.h>

#include <algorithm>
#include <limits>
#include <set>

namespace palimpsest {
namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();

bool contains(const std::vector<int>& units, int unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}

/// Which units one rank holds gathered, along its plan.
class Gatherer {
 public:
  Gatherer(const StepPlan& plan, int rank, const Job& job, int64_t window)
      : plan_(plan), job_(job), window_(window), units_(job.units_of(rank).size()),
        future_(job.model().units.size(), {kNever}), is_resident_(job.model().units.size()) {
    std::vector<Effect> table;
    for (size_t index = 0; index < plan.size(); ++index) {
      if (!is_compute(plan[index].kind)) {
        continue;
      }
      effects(plan[index], job, table);
      std::vector<int> units;
      for (const auto& [place, use] : table) {
        if (use == Use::kReads && place.slot.kind == SlotKind::kParam) {
          units.push_back(place.slot.owner);
        }
      }
      if (!units.empty()) {
        needs_.push_back({index, std::move(units)});
      }
    }
    for (auto need = needs_.rbegin(); need != needs_.rend(); ++need) {
      for (const int unit : need->units) {
        future_[static_cast<size_t>(unit)].push_back(need->index);
      }
    }
  }

  StepPlan run() {
    Insertions insertions(plan_.size());
    for (size_t number = 0; number < needs_.size(); ++number) {
      gather_from(number, insertions);
      for (const int unit : needs_[number].units) {
        future_[static_cast<size_t>(unit)].pop_back();
      }
      release_after(number, insertions);
    }
    return insertions.into(plan_);
  }

 private:
  /// An operation that reads parameters.
  struct Need {
    size_t index = 0;
    std::vector<int> units{};
  };

  bool resident(int unit) const {
    return is_resident_[static_cast<size_t>(unit)];
  }

  void hold(int unit) {
    resident_.push_back(unit);
    is_resident_[static_cast<size_t>(unit)] = true;
    resident_bytes_ += size(unit);
  }

  void let_go(int unit) {
    std::erase(resident_, unit);
    is_resident_[static_cast<size_t>(unit)] = false;
    resident_bytes_ -= size(unit);
  }

  int64_t size(int unit) const {
    return job_.size({.kind = SlotKind::kParam, .owner = unit});
  }

  bool fits(const std::vector<int>& more) const {
    int64_t bytes = resident_bytes_;
    for (const int unit : more) {
      bytes += resident(unit) ? 0 : size(unit);
    }
    return bytes <= window_;
  }

  /// Of a unit that the present need has: the one after that.
  size_t next_use(int unit, const std::vector<int>& present = {}) const {
    const auto& uses = future_[static_cast<size_t>(unit)];
    return uses[uses.size() - (contains(present, unit) ? 2 : 1)];
  }

  /// This need's units, then those of later ones while they fit.
  void gather_from(size_t number, Insertions& insertions) {
    const size_t index = needs_[number].index;
    for (size_t later = number; later < needs_.size(); ++later) {
      std::vector<int> missing;
      for (const int unit : needs_[later].units) {
        if (!resident(unit)) {
          missing.push_back(unit);
        }
      }
      if (resident_.size() == units_ ||
          (later > number &&
           !make_room(missing, needs_[later].index, needs_[number], insertions))) {
        return;
      }
      for (const int unit : missing) {
        insertions.before(index, Op::gather(unit));
        hold(unit);
      }
    }
  }

  /// Releases before the present need what is used later than `use`, the latest first, if that is
  /// enough for `missing`. Not if the latest is the present need's own: so nothing is gathered more
  /// often than without looking ahead.
  bool make_room(
      const std::vector<int>& missing,
      size_t use,
      const Need& present,
      Insertions& insertions) {
    if (fits(missing)) {
      return true;
    }
    const std::vector<int> before = resident_;
    while (!fits(missing)) {
      const auto latest =
          std::max_element(resident_.begin(), resident_.end(), [&](int one, int other) {
            return next_use(one, present.units) < next_use(other, present.units);
          });
      if (latest == resident_.end() || contains(present.units, *latest) ||
          next_use(*latest) <= use) {
        for (const int unit : before) {
          if (!resident(unit)) {
            hold(unit);
          }
        }
        resident_ = before; // in its order
        return false;
      }
      let_go(*latest);
    }
    for (const int unit : before) {
      if (!resident(unit)) {
        insertions.before(present.index, Op::release(unit));
      }
    }
    return true;
  }

  /// What nothing needs any more, and what the next need leaves no room for.
  void release_after(size_t number, Insertions& insertions) {
    const std::vector<int> coming =
        number + 1 < needs_.size() ? needs_[number + 1].units : std::vector<int>();
    std::vector<int> latest_first = resident_;
    std::stable_sort(latest_first.begin(), latest_first.end(), [&](int one, int other) {
      return next_use(one) > next_use(other);
    });
    for (const int unit : latest_first) {
      const bool soon = contains(coming, unit);
      if (!soon && (next_use(unit) == kNever || !fits(coming))) {
        let_go(unit);
        insertions.after(needs_[number].index, Op::release(unit));
      }
    }
  }

  const StepPlan& plan_;
  const Job& job_;
  int64_t window_;
  size_t units_; // of this rank
  std::vector<Need> needs_;
  std::vector<std::vector<size_t>> future_; // by unit: its uses to come, the next one last
  std::vector<int> resident_;
  std::vector<bool> is_resident_; // by unit
  int64_t resident_bytes_ = 0;
};

} // namespace

int64_t window_of_blocks(const Job& job, int blocks) {
  int64_t largest = 0;
  const int count = static_cast<int>(job.model().blocks.size());
  for (int first = 0; first < count; ++first) {
    std::set<int> units;
    int taken = 0;
    for (int block = first; block < count && taken < blocks; ++block) {
      if (job.home(block) == job.home(first)) {
        const std::vector<int>& own = job.model().blocks[static_cast<size_t>(block)].units;
        units.insert(own.begin(), own.end());
        ++taken;
      }
    }
    int64_t bytes = 0;
    for (const int unit : units) {
      bytes += job.size({.kind = SlotKind::kParam, .owner = unit});
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

Plans gather_pass(const Plans& plans, const Job& job, const PlanOptions& options) {
  if (!job.placement().shards_parameters()) {
    return plans;
  }
  Plans result;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    result.push_back(Gatherer(plans[rank], static_cast<int>(rank), job, options.window).run());
  }
  return result;
}

} // namespace palimpsest
