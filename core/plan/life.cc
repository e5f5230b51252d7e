#include <palimpsest/core/plan/life.h>

#include <palimpsest/core/plan/effects.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace palimpsest {
namespace {

/// An operation of some rank.
struct Position {
  int rank = 0;
  int index = 0;
};

/// A SEND and its RECV.
struct Pair {
  Position send;
  Position receive;
};

/// A pair of ranks is one ordered channel: its n-th SEND meets its n-th RECV.
std::vector<Pair> pair_transfers(const Plans& plans) {
  struct Ends {
    std::vector<int> sends;
    std::vector<int> receives;
  };
  std::map<std::pair<int, int>, Ends> channels;
  for (int rank = 0; rank < static_cast<int>(plans.size()); ++rank) {
    const StepPlan& plan = plans[static_cast<size_t>(rank)];
    for (int index = 0; index < static_cast<int>(plan.size()); ++index) {
      const Op& op = plan[static_cast<size_t>(index)];
      if (op.kind == OpKind::kSend) {
        channels[{rank, op.peer}].sends.push_back(index);
      } else if (op.kind == OpKind::kRecv) {
        channels[{op.peer, rank}].receives.push_back(index);
      }
    }
  }
  std::vector<Pair> pairs;
  for (const auto& [channel, ends] : channels) {
    for (size_t nth = 0; nth < std::min(ends.sends.size(), ends.receives.size()); ++nth) {
      pairs.push_back({{channel.first, ends.sends[nth]}, {channel.second, ends.receives[nth]}});
    }
  }
  return pairs;
}

/// Vector clocks: row `index` of a rank says how many operations of each rank are known to be
/// issued once the rank has issued that operation.
class Clocks {
 public:
  Clocks(const Plans& plans, const Job& job, const std::vector<Pair>& pairs)
      : plans_(plans), job_(job), ranks_(plans.size()), rows_(ranks_), sender_(ranks_),
        arriving_(ranks_) {
    for (const Pair& pair : pairs) {
      sender_[static_cast<size_t>(pair.receive.rank)][pair.receive.index] = pair.send;
    }
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t rank = 0; rank < ranks_; ++rank) {
        while (advance(rank)) {
          progress = true;
        }
      }
    }
  }

  /// The first operation of `here` from `send` on after which the RECV is known to be issued.
  int proof(const Pair& pair) const {
    const auto here = static_cast<size_t>(pair.send.rank);
    const auto there = static_cast<size_t>(pair.receive.rank);
    int low = pair.send.index;
    int high = known(here);
    while (low < high) { // what is known only grows
      const int middle = low + (high - low) / 2;
      if (row(here, middle)[there] > pair.receive.index) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low < known(here) ? low : kNeverKnown;
  }

 private:
  int known(size_t rank) const {
    return static_cast<int>(rows_[rank].size() / ranks_);
  }
  const int* row(size_t rank, int index) const {
    return rows_[rank].data() + static_cast<size_t>(index) * ranks_;
  }

  bool advance(size_t rank) {
    const int index = known(rank);
    if (index == static_cast<int>(plans_[rank].size())) {
      return false;
    }
    const Op& op = plans_[rank][static_cast<size_t>(index)];
    if (op.kind == OpKind::kRecv) {
      const auto found = sender_[rank].find(index);
      if (found != sender_[rank].end()) {
        arriving_[rank][op.slot].push_back(found->second);
      }
    }
    effects(op, job_, effects_);
    used_.clear();
    for (const Effect& effect : effects_) {
      if (effect.use != Use::kReads && effect.use != Use::kSpends) {
        continue;
      }
      const auto found = arriving_[rank].find(effect.place.slot);
      if (found == arriving_[rank].end()) {
        continue;
      }
      for (const Position& send : found->second) {
        if (known(static_cast<size_t>(send.rank)) <= send.index) {
          return false;
        }
        used_.push_back(send);
      }
    }
    std::vector<int> clock(ranks_, 0);
    if (index > 0) {
      clock.assign(row(rank, index - 1), row(rank, index - 1) + ranks_);
    }
    for (const Position& send : used_) {
      const int* other = row(static_cast<size_t>(send.rank), send.index);
      for (size_t peer = 0; peer < ranks_; ++peer) {
        clock[peer] = std::max(clock[peer], other[peer]);
      }
    }
    clock[rank] = index + 1;
    rows_[rank].insert(rows_[rank].end(), clock.begin(), clock.end());
    return true;
  }

  const Plans& plans_;
  const Job& job_;
  size_t ranks_;
  std::vector<std::vector<int>> rows_;
  std::vector<std::unordered_map<int, Position>> sender_; // by index of the RECV
  std::vector<std::unordered_map<Slot, std::vector<Position>>> arriving_;
  std::vector<Effect> effects_;
  std::vector<Position> used_;
};

} // namespace

std::vector<std::vector<int>> receipts(const Plans& plans, const Job& job) {
  std::vector<std::vector<int>> proofs;
  for (const StepPlan& plan : plans) {
    auto& own = proofs.emplace_back(plan.size());
    for (size_t index = 0; index < plan.size(); ++index) {
      own[index] = static_cast<int>(index);
    }
  }
  const std::vector<Pair> pairs = pair_transfers(plans);
  if (pairs.empty()) {
    return proofs;
  }
  const Clocks clocks(plans, job, pairs);
  for (const Pair& pair : pairs) {
    proofs[static_cast<size_t>(pair.send.rank)][static_cast<size_t>(pair.send.index)] =
        clocks.proof(pair);
  }
  return proofs;
}

std::vector<PlaceUses> touches(
    const StepPlan& plan,
    const std::vector<int>& receipt,
    const Job& job) {
  std::vector<PlaceUses> found;
  std::vector<int> number(static_cast<size_t>(job.slot_count()) * kTiers, -1);
  const auto agree = std::find_if(
      plan.begin(), plan.end(), [](const Op& op) { return op.kind == OpKind::kAgree; });
  const int end = static_cast<int>(agree == plan.end() ? plan.size() - 1 : agree - plan.begin());
  std::vector<Effect> table;
  for (int index = 0; index < static_cast<int>(plan.size()); ++index) {
    effects(plan[static_cast<size_t>(index)], job, table);
    for (const auto& [place, use] : table) {
      int& known = number
          [static_cast<size_t>(job.slot_id(place.slot)) * kTiers + static_cast<size_t>(place.tier)];
      if (known < 0) {
        known = static_cast<int>(found.size());
        found.push_back({place, {}});
      }
      auto& uses = found[static_cast<size_t>(known)].uses;
      const bool fresh = uses.empty() || uses.back().ends;
      uses.push_back(
          {.index = index,
           .until = std::max(index, std::min(receipt[static_cast<size_t>(index)], end)),
           .begins = use == Use::kCreates || (use == Use::kAdds && fresh),
           .writes = use == Use::kCreates || use == Use::kAdds || use == Use::kChanges,
           .ends = use == Use::kSpends || use == Use::kFrees});
    }
  }
  return found;
}

} // namespace palimpsest
