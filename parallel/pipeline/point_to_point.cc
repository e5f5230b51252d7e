#include <palimpsest/parallel/pipeline/point_to_point.h>

#include <palimpsest/core/plan/effects.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace palimpsest {
namespace {

struct Outgoing {
  size_t after = 0; // index of the operation
  int peer = 0;
  Slot slot{};
};

/// Pipeline ranks other than `rank` where the value is read, ascending.
std::set<int> remote_readers(ValueRef value, int rank, const Job& job) {
  std::set<int> ranks;
  for (const int reader : job.readers(value)) {
    ranks.insert(job.home(reader));
  }
  ranks.erase(rank);
  return ranks;
}

std::vector<Outgoing> outgoing(const StepPlan& plan, int rank, const Job& job) {
  std::vector<Outgoing> sends;
  std::unordered_set<Slot> sent;
  std::unordered_map<Slot, int64_t> added;
  std::vector<Effect> table;
  for (size_t index = 0; index < plan.size(); ++index) {
    const Op& op = plan[index];
    if (!is_compute(op.kind)) {
      continue;
    }
    effects(op, job, table);
    for (const auto& [place, use] : table) {
      const Slot& slot = place.slot;
      if (use == Use::kCreates && slot.kind == SlotKind::kValue && sent.insert(slot).second) {
        for (const int reader : remote_readers({slot.owner, slot.index}, rank, job)) {
          sends.push_back({index, reader, slot});
        }
      }
      if (use != Use::kAdds || slot.kind != SlotKind::kGrad || job.home(slot.owner) == rank) {
        continue;
      }
      const auto& readers = job.readers({slot.owner, slot.index});
      const auto here = std::count_if(
          readers.begin(), readers.end(), [&](int reader) { return job.home(reader) == rank; });
      if (++added[slot] == here) {
        sends.push_back({index, job.home(slot.owner), slot});
      }
    }
  }
  return sends;
}

/// Incoming channels of one rank, by peer: what is sent, in order.
using Channels = std::map<int, const std::vector<Slot>*>;

void receive(
    const StepPlan& plan,
    const Channels& channels,
    const Job& job,
    Insertions& insertions) {
  std::unordered_multimap<Slot, std::pair<int, size_t>> arrivals; // peer and place in its channel
  for (const auto& [peer, slots] : channels) {
    for (size_t nth = 0; nth < slots->size(); ++nth) {
      arrivals.emplace((*slots)[nth], std::pair(peer, nth));
    }
  }
  std::map<int, size_t> received; // by peer
  std::vector<Effect> table;
  for (size_t index = 0; index < plan.size() && !arrivals.empty(); ++index) {
    effects(plan[index], job, table);
    std::map<int, size_t> needed; // by peer: how much of its channel
    for (const auto& [place, use] : table) {
      if (use == Use::kReads) {
        const auto [begin, end] = arrivals.equal_range(place.slot);
        for (auto entry = begin; entry != end; ++entry) {
          const auto [peer, nth] = entry->second;
          needed[peer] = std::max(needed[peer], nth + 1);
        }
      }
    }
    for (const auto& [peer, stop] : needed) {
      for (size_t& next = received[peer]; next < stop; ++next) {
        insertions.before(index, Op::recv((*channels.at(peer))[next], peer));
      }
    }
  }
}

} // namespace

Plans point_to_point_pass(const Plans& plans, const Job& job, const PlanOptions&) {
  std::map<std::pair<int, int>, std::vector<Slot>> channels; // by (from, to)
  std::vector<Insertions> insertions;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    Insertions& own = insertions.emplace_back(plans[rank].size());
    for (const auto& [after, peer, slot] : outgoing(plans[rank], static_cast<int>(rank), job)) {
      channels[{static_cast<int>(rank), peer}].push_back(slot);
      own.after(after, Op::send(slot, peer));
    }
  }
  Plans result;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    Channels incoming;
    for (const auto& [ends, slots] : channels) {
      if (ends.second == static_cast<int>(rank)) {
        incoming[ends.first] = &slots;
      }
    }
    receive(plans[rank], incoming, job, insertions[rank]);
    result.push_back(insertions[rank].into(plans[rank]));
  }
  return result;
}

} // namespace palimpsest
