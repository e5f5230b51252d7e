#include <palimpsest/parallel/sharding/reduce.h>

#include <palimpsest/core/plan/effects.h>

#include <algorithm>
#include <map>
#include <set>

namespace palimpsest {
namespace {

/// What a unit's buffer has received and not yet passed on.
struct Opened {
  std::map<int, std::set<int>> blocks; // by micro-batch
  int reduced = 0; // micro-batches
};

/// Bits depend on the order of additions.
void check_order(const MicroBatchRange& mbs, int unit, int reduced, const Job& job) {
  if (job.reproducible() && mbs != MicroBatchRange{reduced, reduced + 1}) {
    throw UserError(
        "reproducible: the pipeline's schedule adds micro-batches [{}, {}) of {} together or "
        "before earlier ones; use pipeline.schedule: 1f1b",
        mbs.begin,
        mbs.end,
        job.model().units[static_cast<size_t>(unit)].name);
  }
}

StepPlan with_reduces(const StepPlan& plan, int rank, const Job& job) {
  const MicroBatchRange every{0, job.micro_batches()};
  std::vector<Opened> opened(job.model().units.size());
  Insertions insertions(plan.size());
  size_t last = 0; // compute or SEND
  std::vector<Effect> table;
  for (size_t index = 0; index < plan.size(); ++index) {
    const Op& op = plan[index];
    if (is_compute(op.kind) || op.kind == OpKind::kSend) {
      last = index;
    }
    if (!is_compute(op.kind)) {
      continue;
    }
    effects(op, job, table);
    for (const auto& [place, use] : table) {
      if (use != Use::kAdds || place.slot.kind != SlotKind::kGradBuffer) {
        continue;
      }
      const int unit = place.slot.owner;
      auto& [batches, reduced] = opened[static_cast<size_t>(unit)];
      batches[op.mb].insert(op.block);
      const size_t users = job.users(unit, rank).size();
      const bool whole = std::all_of(batches.begin(), batches.end(), [&](const auto& batch) {
        return batch.second.size() == users;
      });
      const bool finished = whole && reduced + static_cast<int>(batches.size()) == every.end;
      if (!finished && !(whole && job.reduces_each_micro_batch())) {
        continue;
      }
      if (job.has_axis(unit, ReduceAxis::kShard)) {
        const MicroBatchRange mbs{batches.begin()->first, batches.rbegin()->first + 1};
        check_order(mbs, unit, reduced, job);
        insertions.after(index, Op::reduce(unit, mbs, ReduceAxis::kShard));
      }
      if (finished && job.has_axis(unit, ReduceAxis::kReplicate)) {
        insertions.after(index, Op::reduce(unit, every, ReduceAxis::kReplicate));
      }
      reduced += static_cast<int>(batches.size());
      batches.clear();
    }
  }
  for (const int unit : job.trained_units(rank)) {
    if (job.training() && job.has_axis(unit, ReduceAxis::kTie)) {
      insertions.after(last, Op::reduce(unit, every, ReduceAxis::kTie));
    }
  }
  return insertions.into(plan);
}

} // namespace

Plans reduce_pass(const Plans& plans, const Job& job, const PlanOptions&) {
  Plans result;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    result.push_back(with_reduces(plans[rank], static_cast<int>(rank), job));
  }
  return result;
}

} // namespace palimpsest
