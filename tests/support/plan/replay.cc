#include <palimpsest/tests/support/plan/replay.h>

#include <algorithm>
#include <initializer_list>

namespace palimpsest::testing {
namespace {

/// Below 2^61, so that the sums over a group can be divided again.
uint64_t mix(const std::vector<uint64_t>& parts) {
  uint64_t hash = 0x243f6a8885a308d3ULL;
  for (const uint64_t part : parts) {
    hash = hash_mix(hash, part + 0x13198a2e03707344ULL);
  }
  return hash >> 3;
}

uint64_t number_of(int value) {
  return static_cast<uint64_t>(static_cast<int64_t>(value));
}

Slot slot_of(SlotKind kind, ValueRef value, int mb) {
  return {.kind = kind, .owner = value.producer, .index = value.index, .mb = mb};
}

Slot unit_slot(SlotKind kind, int unit) {
  return {.kind = kind, .owner = unit};
}

} // namespace

Replay::Replay(const Plans& world, const Job& job) : job_(job), ranks_(world.size()) {
  size_t rounds = 2;
  for (size_t rank = 0; rank < world.size(); ++rank) {
    ranks_[rank].plan = &world[rank];
    rounds += world[rank].size();
    const int pipeline_rank = job.mesh().pipeline_rank(static_cast<int>(rank));
    for (const auto& [place, changes] : job.persistent(pipeline_rank)) {
      const bool state = place.slot.kind == SlotKind::kOptimizerState;
      ranks_[rank].data[place] = {mix({state, number_of(place.slot.owner)})};
    }
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      Rank& own = ranks_[static_cast<size_t>(rank)];
      while (own.next < own.plan->size() && step(rank)) {
        ++own.next;
        own.joined = false;
        progress = true;
      }
    }
  }
  for (const Rank& rank : ranks_) {
    if (rank.next < rank.plan->size()) {
      throw ReplayError("the replay hangs");
    }
  }
}

std::optional<uint64_t> Replay::get(int rank, const Slot& slot, TierId tier) {
  auto& data = ranks_[static_cast<size_t>(rank)].data;
  const auto found = data.find({slot, tier});
  if (found == data.end()) {
    throw ReplayError("missing " + to_text(slot));
  }
  Entry& entry = found->second;
  if (entry.from >= 0) {
    const auto& letters = mail_[{entry.from, rank}];
    if (entry.nth >= letters.size()) {
      return std::nullopt;
    }
    entry = {entry.number + letters[entry.nth]};
  }
  return entry.number;
}

std::optional<uint64_t> Replay::together(int rank, const Op& op, uint64_t number) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  const RankGroup group = job_.group(rank, op);
  if (!own.joined) {
    own.joined = true;
    ++own.turns[group];
    board_[{group, own.turns[group]}][rank] = number;
  }
  const auto& came = board_[{group, own.turns[group]}];
  if (came.size() < group.ranks.size()) {
    return std::nullopt;
  }
  uint64_t sum = 0;
  for (const auto& [member, part] : came) {
    sum += part;
  }
  return sum;
}

/// The rank's next operation; false while it has to wait.
bool Replay::step(int rank) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  const Op& op = (*own.plan)[own.next];
  const auto set = [&](const Slot& slot, uint64_t number) {
    own.data[{slot, TierId::kDevice}] = {number};
  };
  switch (op.kind) {
    case OpKind::kLoad:
      set(slot_of(SlotKind::kValue, {kLoader, 0}, op.mb),
          mix({7, number_of(op.mb * job_.mesh().data() + job_.mesh().data_rank(rank))}));
      return true;
    case OpKind::kForward:
    case OpKind::kBackward:
      return compute(rank, op);
    case OpKind::kGather: {
      const auto shard = get(rank, unit_slot(SlotKind::kParamShard, op.unit));
      const auto total = shard ? together(rank, op, *shard) : std::nullopt;
      if (total) {
        set(unit_slot(SlotKind::kParam, op.unit), *total / number_of(job_.mesh().shard));
      }
      return total.has_value();
    }
    case OpKind::kReduce: {
      const bool shard = op.axis == ReduceAxis::kShard;
      const Slot target = job_.gradient(op.unit);
      const auto part = get(rank, shard ? unit_slot(SlotKind::kGradBuffer, op.unit) : target);
      const auto total = part ? together(rank, op, *part) : std::nullopt;
      if (total) {
        const auto found = own.data.find({target, TierId::kDevice});
        const bool adds = shard && found != own.data.end();
        set(target, (adds ? found->second.number : 0) + *total);
      }
      return total.has_value();
    }
    case OpKind::kUpdate: {
      std::vector<uint64_t> numbers{5, 0};
      const std::initializer_list<Slot> slots{
          job_.weight(op.unit),
          unit_slot(SlotKind::kOptimizerState, op.unit),
          job_.gradient(op.unit)};
      for (const Slot& slot : slots) {
        numbers.push_back(*get(rank, slot));
      }
      for (uint64_t nth = 0; nth < 2; ++nth) {
        numbers[1] = nth;
        set(slots.begin()[nth], mix(numbers));
      }
      return true;
    }
    case OpKind::kRelease:
    case OpKind::kDrop: {
      const Place place = op.kind == OpKind::kDrop
          ? Place{op.slot, op.tier}
          : Place{unit_slot(SlotKind::kParam, op.unit), TierId::kDevice};
      if (own.data.erase(place) == 0) {
        throw ReplayError("missing " + to_text(place.slot));
      }
      return true;
    }
    case OpKind::kStash:
    case OpKind::kFetch:
    case OpKind::kSend:
    case OpKind::kRecv:
      return transfer(rank, op);
    case OpKind::kAgree:
    case OpKind::kPublish:
    case OpKind::kCommit:
      return true;
  }
  return true;
}

bool Replay::transfer(int rank, const Op& op) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  const int peer = op.peer >= 0 ? job_.mesh().peer(rank, op.peer) : -1;
  if (op.kind == OpKind::kRecv) {
    uint64_t base = 0;
    if (own.data.contains({op.slot, TierId::kDevice})) {
      const auto number = get(rank, op.slot);
      if (!number) {
        return false;
      }
      base = *number;
    }
    own.data[{op.slot, TierId::kDevice}] = {base, peer, own.received[peer]++};
    return true;
  }
  const bool fetches = op.kind == OpKind::kFetch;
  const auto number = get(rank, op.slot, fetches ? op.tier : TierId::kDevice);
  if (!number) {
    return false;
  }
  if (op.kind == OpKind::kSend) {
    mail_[{rank, peer}].push_back(*number);
  } else {
    own.data[{op.slot, fetches ? TierId::kDevice : op.tier}] = {*number};
  }
  return true;
}

/// Everything that the computation reads.
std::optional<std::vector<uint64_t>> Replay::inputs(int rank, const Op& op) {
  const BlockCost& block = job_.model().blocks[static_cast<size_t>(op.block)];
  const bool backward = op.kind == OpKind::kBackward;
  std::vector<Slot> slots;
  if (backward && op.part == BackwardPart::kWeight) {
    slots = {{.kind = SlotKind::kWeightJobs, .owner = op.block, .mb = op.mb}};
  } else {
    if (!backward || block.backward_reads_units) {
      for (const int unit : block.units) {
        slots.push_back(unit_slot(SlotKind::kParam, unit));
      }
    }
    for (const ValueRef value : backward&& block.saves ? *block.saves : block.reads) {
      slots.push_back(slot_of(SlotKind::kValue, value, op.mb));
    }
    if (backward) {
      slots.push_back({.kind = SlotKind::kTape, .owner = op.block, .mb = op.mb});
      for (const int index : job_.read_values(op.block)) {
        slots.push_back(slot_of(SlotKind::kGrad, {op.block, index}, op.mb));
      }
    }
  }
  std::vector<uint64_t> numbers;
  for (const Slot& slot : slots) {
    const auto number = get(rank, slot);
    if (!number) {
      return std::nullopt;
    }
    numbers.push_back(*number);
  }
  return numbers;
}

bool Replay::compute(int rank, const Op& op) {
  auto& data = ranks_[static_cast<size_t>(rank)].data;
  const auto numbers = inputs(rank, op);
  if (!numbers) {
    return false;
  }
  const bool backward = op.kind == OpKind::kBackward;
  const bool weight = backward && op.part == BackwardPart::kWeight;
  std::vector<uint64_t> parts{number_of(op.block)};
  parts.insert(parts.end(), numbers->begin(), numbers->end());
  const uint64_t seed = weight ? numbers->front() : mix(parts);
  const auto set = [&](const Slot& slot, uint64_t number) {
    data[{slot, TierId::kDevice}] = {number};
  };
  if (!backward && op.block != job_.model().terminal()) {
    for (int index = 0; index < ValueSet::kLimit; ++index) {
      if (op.yields.contains(index)) {
        set(slot_of(SlotKind::kValue, {op.block, index}, op.mb), mix({seed, number_of(index)}));
      }
    }
    if (op.tape != TapeMode::kNone) { // lean or full: the same numbers
      set({.kind = SlotKind::kTape, .owner = op.block, .mb = op.mb}, seed);
    }
    return true;
  }
  if (!backward && op.tape == TapeMode::kNone) {
    return true;
  }
  std::vector<Slot> targets;
  if (!weight) {
    for (const ValueRef value : job_.graded_reads(op.block)) {
      targets.push_back(slot_of(SlotKind::kGrad, value, op.mb));
    }
  }
  if (!backward || op.part != BackwardPart::kInput) {
    for (const int unit : job_.trainable(op.block)) {
      targets.push_back(unit_slot(SlotKind::kGradBuffer, unit));
    }
  }
  std::vector<uint64_t> bases;
  for (const Slot& target : targets) {
    const bool live = data.contains({target, TierId::kDevice});
    const auto base = live ? get(rank, target) : std::optional<uint64_t>(0);
    if (!base) {
      return false;
    }
    bases.push_back(*base);
  }
  if (backward && op.part == BackwardPart::kInput) {
    set({.kind = SlotKind::kWeightJobs, .owner = op.block, .mb = op.mb}, seed);
  }
  for (size_t nth = 0; nth < targets.size(); ++nth) {
    const Slot& target = targets[nth];
    set(target,
        bases[nth] +
            mix(
                {seed,
                 target.kind == SlotKind::kGrad,
                 number_of(target.owner),
                 number_of(target.index)}));
  }
  return true;
}

States Replay::states(bool ignore_leaks) const {
  States states;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const int pipeline_rank = job_.mesh().pipeline_rank(static_cast<int>(rank));
    for (const auto& [place, entry] : ranks_[rank].data) {
      if (!job_.is_persistent(place, pipeline_rank)) {
        if (ignore_leaks) {
          continue;
        }
        throw ReplayError("left over: " + to_text(place.slot));
      }
      const bool state = place.slot.kind == SlotKind::kOptimizerState;
      const auto [known, fresh] = states.try_emplace({state, place.slot.owner}, entry.number);
      if (known->second != entry.number) {
        throw ReplayError("ranks disagree about " + to_text(place.slot));
      }
    }
  }
  return states;
}

} // namespace palimpsest::testing
