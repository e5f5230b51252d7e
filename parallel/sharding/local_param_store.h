#pragma once

// The parameter store of a group of one: every unit is whole and lives on the device.
//
//   LocalParamStore store(units, {.moment_count = 2}, groups, memory);
//   store.shard(3).values().copy_(weights);
//   store.refresh(3);                       // the parameters from their master
//
// What a plan does on several ranks or with shards is an InternalError here. Only optimizer states
// may leave the device.

#include <palimpsest/core/contracts/param_store.h>
#include <palimpsest/core/contracts/param_unit.h>
#include <palimpsest/core/device/memory_context.h>

#include <memory>
#include <vector>

namespace palimpsest {

class LocalParamStore final : public ParamStore {
 public:
  struct Layout {
    int moment_count = 0; // fp32 tensors per trainable unit
  };

  /// Allocates what training `units` needs: parameters in each unit's dtype, for trainable ones
  /// also zeroed moments and, where the dtype is not fp32, an fp32 master. `groups[unit]` covers
  /// the unit; the units are bound to their data and outlive the store.
  LocalParamStore(
      const std::vector<std::unique_ptr<ParamUnit>>& units,
      Layout layout,
      std::vector<std::vector<GroupRange>> groups,
      MemoryContext& memory);
  ~LocalParamStore() override;
  LocalParamStore(const LocalParamStore&) = delete;
  LocalParamStore& operator=(const LocalParamStore&) = delete;

  /// Recomputes a unit's parameters from its master after somebody has set the master.
  void refresh(int unit);

  Ticket gather(int unit) override;
  void release(int unit) override;
  void open(const Slot& slot) override;
  void close(const Slot& slot) override;
  std::vector<at::Tensor*> tensors(const Slot& slot) override;
  Ticket reduce(int unit, MicroBatchRange micro_batches, ReduceAxis axis) override;
  Ticket publish(int unit) override;
  ParamShard& shard(int unit) override;

 private:
  ParamUnit& unit_at(int unit) const;

  const std::vector<std::unique_ptr<ParamUnit>>& units_;
  std::vector<ParamShard> shards_;
  MemoryContext& memory_;
};

} // namespace palimpsest
