#include <palimpsest/parallel/sharding/local_param_store.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace palimpsest {
namespace {

bool has_master(const ParamUnit& unit) {
  return unit.trainable() && unit.dtype() != at::kFloat;
}

} // namespace

LocalParamStore::LocalParamStore(
    const std::vector<std::unique_ptr<ParamUnit>>& units,
    Layout layout,
    std::vector<std::vector<GroupRange>> groups,
    MemoryContext& memory)
    : units_(units), shards_(units.size()), memory_(memory) {
  check(groups.size() == units.size(), "{} groups for {} units", groups.size(), units.size());
  for (size_t index = 0; index < units.size(); ++index) {
    ParamUnit& unit = *units[index];
    ParamShard& shard = shards_[index];
    shard.groups = std::move(groups[index]);
    {
      const ScopedCategory category(memory_, Category::kParameters);
      shard.parameters = at::empty({unit.numel()}, unit.dtype());
    }
    unit.bind_data(shard.parameters);
    if (!unit.trainable()) {
      continue;
    }
    const ScopedCategory category(memory_, Category::kOptimizer);
    if (has_master(unit)) {
      shard.master = at::empty({unit.numel()}, at::kFloat);
    }
    for (int number = 0; number < layout.moment_count; ++number) {
      shard.moments.push_back(at::zeros({unit.numel()}, at::kFloat));
    }
  }
}

LocalParamStore::~LocalParamStore() {
  for (const auto& unit : units_) {
    unit->bind_data({});
    unit->bind_grad({});
  }
}

void LocalParamStore::refresh(int unit) {
  ParamShard& shard = this->shard(unit);
  if (shard.master.defined()) {
    shard.parameters.copy_(shard.master);
  }
}

Ticket LocalParamStore::gather(int unit) {
  check(false, "unit {} is whole already", unit);
  return {};
}

void LocalParamStore::release(int unit) {
  check(false, "unit {} stays whole", unit);
}

void LocalParamStore::open(const Slot& slot) {
  check(slot.kind == SlotKind::kGradBuffer, "{}: whole units have no shards", to_text(slot));
  const ScopedCategory category(memory_, Category::kGradients);
  ParamShard& shard = this->shard(slot.owner);
  check(!shard.gradient.defined(), "{} begins twice", to_text(slot));
  shard.gradient = at::zeros({unit_at(slot.owner).numel()}, at::kFloat);
  unit_at(slot.owner).bind_grad(shard.gradient);
}

void LocalParamStore::close(const Slot& slot) {
  shard(slot.owner).gradient = at::Tensor();
  unit_at(slot.owner).bind_grad({});
}

std::vector<at::Tensor*> LocalParamStore::tensors(const Slot& slot) {
  ParamShard& shard = this->shard(slot.owner);
  switch (slot.kind) {
    case SlotKind::kOptimizerState: {
      // By what there is, not by what is here: the same list fetches what has left.
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

Ticket LocalParamStore::reduce(int unit, MicroBatchRange, ReduceAxis) {
  check(false, "the gradient of unit {} has nobody to be summed with", unit);
  return {};
}

Ticket LocalParamStore::publish(int unit) {
  check(false, "unit {} is updated as a whole", unit);
  return {};
}

ParamShard& LocalParamStore::shard(int unit) {
  check(unit >= 0 && static_cast<size_t>(unit) < shards_.size(), "no unit {}", unit);
  return shards_[static_cast<size_t>(unit)];
}

ParamUnit& LocalParamStore::unit_at(int unit) const {
  check(unit >= 0 && static_cast<size_t>(unit) < units_.size(), "no unit {}", unit);
  return *units_[static_cast<size_t>(unit)];
}

} // namespace palimpsest
