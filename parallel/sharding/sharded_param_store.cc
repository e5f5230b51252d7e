#include <palimpsest/parallel/sharding/sharded_param_store.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace palimpsest {
namespace {

/// The part of a whole unit's groups that a range has, counted from its start.
std::vector<GroupRange> cut_groups(const std::vector<GroupRange>& whole, ElementRange range) {
  std::vector<GroupRange> part;
  for (GroupRange group : whole) {
    group.begin = std::max(group.begin, range.begin) - range.begin;
    group.end = std::min(group.end, range.end) - range.begin;
    if (group.begin < group.end) {
      part.push_back(group);
    }
  }
  return part;
}

} // namespace

ShardedParamStore::ShardedParamStore(
    const std::vector<std::unique_ptr<ParamUnit>>& units,
    const Settings& settings,
    const std::vector<std::vector<GroupRange>>& decay_groups,
    MeshGroups groups,
    MemoryContext& memory)
    : units_(units), settings_(settings), groups_(std::move(groups)), memory_(memory),
      entries_(units.size()) {
  check(
      decay_groups.size() == units.size(),
      "{} groups for {} units",
      decay_groups.size(),
      units.size());
  check(
      groups_.mesh.shard == 1 || settings.placement.shards_optimizer(),
      "zero: 0 has nothing to shard over {} ranks",
      groups_.mesh.shard);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    allocate(static_cast<int>(unit), decay_groups[unit]);
  }
}

ShardedParamStore::~ShardedParamStore() {
  for (const auto& unit : units_) {
    unit->bind_data({});
    unit->bind_grad({});
  }
}

bool ShardedParamStore::has_master(const ParamUnit& unit) const {
  return unit.trainable() && settings_.precision.has_master(unit.dtype());
}

void ShardedParamStore::allocate(int number, const std::vector<GroupRange>& decay_groups) {
  ParamUnit& unit = unit_at(number);
  Entry& entry = this->entry(number);
  ParamShard& shard = entry.shard;
  const bool sharded = settings_.placement.shards_parameters();
  entry.layout = unit_layout(
      unit.numel(), unit.trainable(), groups_.mesh, settings_.placement, settings_.reproducible);
  entry.range = entry.layout.range(entry.layout.ranks == 1 ? 0 : groups_.shard_rank());
  const int64_t own = entry.range.size();
  {
    const ScopedCategory category(memory_, Category::kParameters);
    const int64_t held = sharded ? entry.layout.shard : entry.layout.whole();
    const int64_t used = sharded ? own : unit.numel();
    entry.parameters = at::empty({unit.held(held)}, unit.held_dtype());
    entry.parameters.narrow(0, unit.held(used), unit.held(held) - unit.held(used)).zero_();
  }
  shard.parameters =
      entry.parameters.narrow(0, sharded ? 0 : unit.held(entry.range.begin), unit.held(own));
  if (!sharded) {
    unit.bind_data(entry.parameters);
  }
  if (!unit.trainable()) {
    return;
  }
  shard.groups = cut_groups(decay_groups, entry.range);
  shard.unit = number;
  shard.begin = entry.range.begin;
  const ScopedCategory category(memory_, Category::kOptimizer);
  if (has_master(unit)) {
    shard.master = at::empty({own}, at::kFloat);
  }
  for (int moment = 0; moment < settings_.moment_count; ++moment) {
    shard.moments.push_back(at::zeros({own}, settings_.precision.moments));
  }
}

void ShardedParamStore::refresh(int unit) {
  ParamShard& shard = this->shard(unit);
  if (shard.master.defined()) {
    shard.parameters.copy_(shard.master);
  }
  if (unit_at(unit).trainable() && settings_.placement.publishes()) {
    publish(unit).wait();
  }
}

Ticket ShardedParamStore::gather(int number) {
  ParamUnit& unit = unit_at(number);
  const Entry& entry = this->entry(number);
  check(settings_.placement.shards_parameters(), "unit {} is whole already", number);
  check(!unit.data().defined(), "unit {} is gathered twice", number);
  const ScopedCategory category(memory_, Category::kParameters);
  const at::Tensor whole = at::empty({unit.held(entry.layout.whole())}, unit.held_dtype());
  Ticket arriving;
  if (groups_.shard == nullptr) {
    whole.copy_(entry.parameters);
  } else {
    arriving = groups_.shard->all_gather(entry.parameters, whole);
  }
  unit.bind_data(whole); // last, so that a gather without memory for it can be issued again
  return arriving;
}

void ShardedParamStore::release(int unit) {
  check(settings_.placement.shards_parameters(), "unit {} stays whole", unit);
  unit_at(unit).bind_data({});
}

bool ShardedParamStore::reduces_to_shards() const {
  return settings_.placement.shards_optimizer() || settings_.reproducible;
}

void ShardedParamStore::open(const Slot& slot) {
  Entry& entry = this->entry(slot.owner);
  ParamUnit& unit = unit_at(slot.owner);
  const ScopedCategory category(memory_, Category::kGradients);
  if (slot.kind == SlotKind::kGradBuffer) {
    check(!unit.grad().defined(), "{} begins twice", to_text(slot));
    unit.bind_fresh_grad(at::empty({entry.layout.whole()}, settings_.precision.gradients));
    if (!reduces_to_shards()) {
      entry.shard.gradient = unit.grad();
    }
    return;
  }
  check(
      slot.kind == SlotKind::kGradShard && reduces_to_shards(),
      "{} is no gradient here",
      to_text(slot));
  check(!entry.grad_shard.defined(), "{} begins twice", to_text(slot));
  entry.grad_shard = at::zeros({entry.layout.shard}, settings_.precision.gradients);
  entry.shard.gradient = entry.grad_shard.narrow(0, 0, entry.range.size());
}

void ShardedParamStore::close(const Slot& slot) {
  if (slot.kind == SlotKind::kParam) {
    return release(slot.owner);
  }
  Entry& entry = this->entry(slot.owner);
  if (slot.kind == SlotKind::kGradBuffer) {
    unit_at(slot.owner).bind_grad({});
  } else {
    entry.grad_shard = at::Tensor();
  }
  if ((slot.kind == SlotKind::kGradShard) == reduces_to_shards()) {
    entry.shard.gradient = at::Tensor();
  }
}

std::vector<at::Tensor*> ShardedParamStore::tensors(const Slot& slot) {
  Entry& entry = this->entry(slot.owner);
  ParamShard& shard = entry.shard;
  // By what there is, not by what is here: the same list fetches what has left.
  switch (slot.kind) {
    case SlotKind::kParamShard:
      return {&entry.parameters, &shard.parameters};
    case SlotKind::kGradShard:
      return {&entry.grad_shard, &shard.gradient};
    case SlotKind::kOptimizerState: {
      std::vector<at::Tensor*> states;
      if (has_master(unit_at(slot.owner))) {
        states.push_back(&shard.master);
      }
      for (at::Tensor& moment : shard.moments) {
        states.push_back(&moment);
      }
      return states;
    }
    default:
      check(false, "{} stays on the device", to_text(slot));
      return {};
  }
}

Ticket ShardedParamStore::reduce(int unit, MicroBatchRange, ReduceAxis axis) {
  const ScopedCategory category(memory_, Category::kCommunication);
  unit_at(unit).settle_grad();
  switch (axis) {
    case ReduceAxis::kShard:
      return reduce_to_shard(unit);
    case ReduceAxis::kReplicate: {
      check(
          groups_.replicate != nullptr && !settings_.reproducible,
          "the gradient of unit {} has no replicas to be summed with",
          unit);
      const Entry& entry = this->entry(unit);
      return groups_.replicate->all_reduce(
          reduces_to_shards() ? entry.grad_shard : unit_at(unit).grad(), ReduceOp::kSum);
    }
    case ReduceAxis::kTie:
      break;
  }
  check(false, "the gradient of unit {} has nobody to be summed with", unit);
  return {};
}

/// Where sums are reproducible, a rank owns the piece of its shard that is its part of the whole
/// data-parallel group; what the other pieces hold is replaced by their owners' sums.
Ticket ShardedParamStore::reduce_to_shard(int unit) {
  const at::Tensor& whole = unit_at(unit).grad();
  const at::Tensor& mine = entry(unit).grad_shard;
  check(whole.defined() && mine.defined(), "unit {} has no gradient to sum, or no shard", unit);
  Communicator* group = settings_.reproducible ? groups_.data : groups_.shard;
  if (group == nullptr) {
    mine.add_(whole);
    return {};
  }
  if (!settings_.reproducible || groups_.replicate == nullptr) {
    return group->reduce_scatter(whole, mine);
  }
  const int64_t size = mine.numel() / groups_.mesh.replicate;
  const at::Tensor piece = mine.narrow(0, groups_.replicate_rank() * size, size);
  // Waits here, so that all ranks issue the second exchange at the same place among the others.
  group->reduce_scatter(whole, piece).wait();
  return groups_.replicate->all_gather(piece, mine);
}

Ticket ShardedParamStore::publish(int unit) {
  check(
      unit_at(unit).trainable() && settings_.placement.publishes(),
      "unit {} is updated as a whole, or stays in shards",
      unit);
  if (groups_.shard == nullptr) {
    return {};
  }
  const Entry& entry = this->entry(unit);
  const int64_t size = entry.layout.shard;
  return groups_.shard->all_gather(
      entry.parameters.narrow(0, groups_.shard_rank() * size, size), entry.parameters);
}

ParamShard& ShardedParamStore::shard(int unit) {
  if (unit_at(unit).grad().defined()) {
    unit_at(unit).settle_grad();
  }
  return entry(unit).shard;
}

size_t ShardedParamStore::index(int unit) const {
  check(unit >= 0 && static_cast<size_t>(unit) < entries_.size(), "no unit {}", unit);
  return static_cast<size_t>(unit);
}

} // namespace palimpsest
