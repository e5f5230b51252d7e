#pragma once

// Parameters, gradients and optimizer states of one rank, placed by the table of ZeRO stages.
//
//   ShardedParamStore store(units, {.placement = {.zero = 2}, .moment_count = 2}, decay_groups, groups, memory);
//   store.shard(3).values().copy_(weights.slice(store.range(3)));     // this rank's elements
//   store.refresh(3);                                                 // parameters from their master, whole again
//
//                  zero: 0      1                2                3
//   parameters     whole        whole            whole            shard
//   gradients      whole        whole            shard            shard
//   optimizer      whole        shard            shard            shard
//
// One process, plain data parallelism, sharding and hybrids of both differ in their groups alone
// (mesh_groups.h). What a rank updates, shard(unit), has no padding: it is the range(unit) of the
// unit's elements, which may be empty; only the buffers that collectives work on are padded to equal
// parts (unit_layout.h). Frozen units have neither gradient nor optimizer state, and are sharded
// with zero: 3 only. What a plan does against the table is an InternalError.

#include <palimpsest/core/contracts/param_store.h>
#include <palimpsest/core/contracts/param_unit.h>
#include <palimpsest/core/contracts/precision.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/parallel/mesh/mesh_groups.h>

#include <memory>
#include <vector>

namespace palimpsest {

class ShardedParamStore final : public ParamStore {
 public:
  struct Settings {
    Placement placement{};
    bool reproducible = false; ///< as in JobDescription
    int moment_count = 0; ///< tensors per trainable unit
    StatePrecision precision = {};
  };

  /// Allocates what training `units` needs: parameters as each unit holds them, for trainable ones also
  /// zeroed moments and, where `precision` wants one, an fp32 master. `decay_groups[unit]` covers
  /// the whole unit (nothing for frozen ones). `units` outlive the store.
  ShardedParamStore(
      const std::vector<std::unique_ptr<ParamUnit>>& units,
      const Settings& settings,
      const std::vector<std::vector<GroupRange>>& decay_groups,
      MeshGroups groups,
      MemoryContext& memory);
  ~ShardedParamStore() override;
  ShardedParamStore(const ShardedParamStore&) = delete;
  ShardedParamStore& operator=(const ShardedParamStore&) = delete;

  /// Makes a unit's parameters follow from what somebody has set as its shard's values: rounded from
  /// the master and, where they are whole, exchanged. Collective over the shard group.
  void refresh(int unit);

  /// The elements of the unit that shard(unit) holds.
  ElementRange range(int unit) const {
    return entries_[index(unit)].range;
  }
  /// How the unit's buffers are cut over the shard group: into one where its states are whole.
  const UnitLayout& layout(int unit) const {
    return entries_[index(unit)].layout;
  }

  Ticket gather(int unit) override;
  void release(int unit) override;
  void open(const Slot& slot) override;
  void close(const Slot& slot) override;
  std::vector<at::Tensor*> tensors(const Slot& slot) override;
  Ticket reduce(int unit, MicroBatchRange micro_batches, ReduceAxis axis) override;
  Ticket publish(int unit) override;
  ParamShard& shard(int unit) override;

 private:
  struct Entry {
    UnitLayout layout;
    ElementRange range; // this rank's elements
    at::Tensor parameters; // whole, or this rank's shard, with padding
    at::Tensor grad_shard; // with padding; undefined while its slot is not live
    ParamShard shard; // views of both, without padding
  };

  void allocate(int unit, const std::vector<GroupRange>& decay_groups);
  bool has_master(const ParamUnit& unit) const;
  /// Whether UPDATE reads the gradient from grad_shard.
  bool reduces_to_shards() const;
  Ticket reduce_to_shard(int unit);
  size_t index(int unit) const;
  Entry& entry(int unit) {
    return entries_[index(unit)];
  }
  ParamUnit& unit_at(int unit) const {
    return *units_[index(unit)];
  }

  const std::vector<std::unique_ptr<ParamUnit>>& units_;
  Settings settings_;
  MeshGroups groups_;
  MemoryContext& memory_;
  std::vector<Entry> entries_;
};

} // namespace palimpsest
