#pragma once

// Steps of a real plan on one rank's real store, with made-up gradients instead of a model.
//
//   StoreSteps steps(world, memory, {.mesh = {.shard = 2}, .zero = 2});
//   steps.run(gradient_of);            // GATHER, REDUCE, UPDATE, PUBLISH, DROP as planned

#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/core/plan/effects.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace palimpsest::testing {

struct StoreChoice {
  Mesh mesh{};
  int zero = 0;
  bool reproducible = false;
  at::ScalarType dtype = at::kFloat;
  int micro_batches = 1;
  int moments = 2;
  int64_t window = 0;
  bool recompute = false; ///< each block by itself
  bool frozen = true; ///< the first block has a frozen unit of 57 elements too
  /// Of each trained unit, one per block.
  std::vector<std::vector<int64_t>> shapes{{67, 24}, {10'000}, {}, {0}, {5, 3}};
};

inline std::string to_text(const StoreChoice& choice) {
  return fmt::format(
      "replicate={} shard={} zero={} reproducible={} dtype={} micro_batches={}",
      choice.mesh.replicate,
      choice.mesh.shard,
      choice.zero,
      choice.reproducible,
      c10::toString(choice.dtype),
      choice.micro_batches);
}

/// The fp32 gradient of global micro-batch g, [numel].
using GradientOf = std::function<at::Tensor(int unit, int g)>;

class StoreSteps {
 public:
  /// `world` may be null for a single process. Parameters begin at `initial(unit)`.
  StoreSteps(
      Communicator* world,
      MemoryContext& memory,
      const StoreChoice& choice,
      const std::function<at::Tensor(int unit)>& initial)
      : choice_(choice), memory_(memory),
        groups_(world == nullptr ? MeshGroups{} : split_world(*world, choice.mesh)),
        units_(make_units(choice)), store_(
                                        units_,
                                        {.placement = {.zero = choice.zero},
                                         .reproducible = choice.reproducible,
                                         .moment_count = choice.moments},
                                        whole_groups(units_),
                                        groups_,
                                        memory),
        job_(describe(choice, units_)),
        plan_(compose(job_, find_schedule("1f1b"), options(choice))),
        report_(simulate(plan_, job_)) {
    for (int unit = 0; unit < count(); ++unit) {
      const ElementRange own = store_.range(unit);
      store_.shard(unit).values().copy_(initial(unit).narrow(0, own.begin, own.size()));
      store_.refresh(unit);
    }
  }

  ShardedParamStore& store() {
    return store_;
  }
  const Job& job() const {
    return job_;
  }
  const MeshGroups& groups() const {
    return groups_;
  }
  const StepPlan& plan() const {
    return plan_.front();
  }
  const RankReport& report() const {
    return report_.ranks.front();
  }
  ParamUnit& unit(int number) const {
    return *units_[static_cast<size_t>(number)];
  }
  int count() const {
    return static_cast<int>(units_.size());
  }
  const std::vector<int>& trained() const {
    return job_.trained_units(0);
  }

  /// Called where the plan computes with a unit, agrees, and updates a unit.
  std::function<void(int unit)> on_compute = [](int) {};
  std::function<void()> on_agree = [] {};
  std::function<void(int unit)> on_update = [](int) {};

  void run(const GradientOf& gradient) {
    const MeshGroups& groups = groups_;
    const int ranks = choice_.mesh.data();
    std::set<Slot> open;
    for (const Op& op : plan()) {
      for (const auto& [place, use] : effects(op, job_)) {
        const SlotKind kind = place.slot.kind;
        const bool gradient_slot = kind == SlotKind::kGradBuffer || kind == SlotKind::kGradShard;
        if (use == Use::kAdds && gradient_slot && open.insert(place.slot).second) {
          store_.open(place.slot);
        }
        if (use == Use::kReads && kind == SlotKind::kParam) {
          on_compute(place.slot.owner);
        }
        if (use == Use::kAdds && kind == SlotKind::kGradBuffer) {
          const at::Tensor grad = gradient(place.slot.owner, op.mb * ranks + groups.data_rank());
          at::Tensor view = unit(place.slot.owner).grad_view(0);
          view.add_(grad.view_as(view));
        }
      }
      perform(op, open);
    }
  }

 private:
  void perform(const Op& op, std::set<Slot>& open) {
    switch (op.kind) {
      case OpKind::kGather:
        return store_.gather(op.unit).wait();
      case OpKind::kRelease:
        return store_.release(op.unit);
      case OpKind::kReduce:
        return store_.reduce(op.unit, op.mbs, op.axis).wait();
      case OpKind::kPublish:
        return store_.publish(op.unit).wait();
      case OpKind::kUpdate:
        return on_update(op.unit);
      case OpKind::kAgree:
        return on_agree();
      case OpKind::kDrop:
        if (open.erase(op.slot) != 0) {
          store_.close(op.slot);
        }
        return;
      default:
        return;
    }
  }

  static std::vector<std::unique_ptr<ParamUnit>> make_units(const StoreChoice& choice) {
    std::vector<std::unique_ptr<ParamUnit>> units;
    const auto add = [&](const std::vector<int64_t>& shape, bool trainable) {
      const std::string name = fmt::format("unit.{}", units.size());
      units.push_back(std::make_unique<ParamUnit>(
          name, std::vector<Parameter>{{.name = name, .shape = shape}}, choice.dtype, trainable));
    };
    for (const std::vector<int64_t>& shape : choice.shapes) {
      add(shape, true);
    }
    if (choice.frozen) {
      add({57}, false);
    }
    return units;
  }

  static std::vector<std::vector<GroupRange>> whole_groups(
      const std::vector<std::unique_ptr<ParamUnit>>& units) {
    std::vector<std::vector<GroupRange>> groups;
    for (const auto& unit : units) {
      auto& own = groups.emplace_back();
      if (unit->trainable() && unit->numel() > 0) {
        own.push_back({.begin = 0, .end = unit->numel(), .weight_decay = 0.1});
      }
    }
    return groups;
  }

  static PlanOptions options(const StoreChoice& choice) {
    PlanOptions options{.window = choice.window};
    const int last = static_cast<int>(choice.shapes.size()) - 1;
    for (int block = 0; choice.recompute && block < last; ++block) {
      options.segments.push_back(recomputed({block, block + 1}));
    }
    return options;
  }

  static JobDescription describe(
      const StoreChoice& choice,
      const std::vector<std::unique_ptr<ParamUnit>>& units) {
    ModelCost model;
    const int masters = choice.dtype == at::kFloat ? 0 : 1;
    for (const auto& unit : units) {
      const auto element = static_cast<int64_t>(c10::elementSize(choice.dtype));
      const bool trained = unit->trainable();
      model.units.push_back(
          {.name = unit->name(),
           .elements = unit->numel(),
           .parameter_bytes = unit->numel() * element,
           .gradient_bytes = trained ? unit->numel() * 4 : 0,
           .state_bytes = trained ? unit->numel() * 4 * (masters + choice.moments) : 0,
           .frozen = !trained});
    }
    const int trained = static_cast<int>(choice.shapes.size());
    for (int block = 0; block < trained; ++block) {
      const bool last = block + 1 == trained;
      model.blocks.push_back(
          {.reads = {block == 0 ? ValueRef{kLoader, 0} : ValueRef{block - 1, 0}},
           .value_bytes = last ? std::vector<int64_t>{} : std::vector<int64_t>{1},
           .units =
               block == 0 && choice.frozen ? std::vector<int>{0, trained} : std::vector<int>{block},
           .full_bytes = 1});
    }
    return {
        .model = model,
        .stages = {{0, trained}},
        .micro_batches = choice.micro_batches,
        .mesh = choice.mesh,
        .placement = {.zero = choice.zero},
        .reproducible = choice.reproducible};
  }

  StoreChoice choice_;
  MemoryContext& memory_;
  MeshGroups groups_;
  std::vector<std::unique_ptr<ParamUnit>> units_;
  ShardedParamStore store_;
  Job job_;
  Plans plan_;
  PlanReport report_;
};

} // namespace palimpsest::testing
