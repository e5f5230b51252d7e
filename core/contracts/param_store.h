#pragma once

// Owns parameters, gradients and optimizer states by a placement table; the plan's operations on
// units act on it. Blocks see only their ParamUnit's views.
//
//   store.open(Slot{SlotKind::kGradBuffer, unit});   // the unit's grad_view() works now
//   store.reduce(unit, {0, 4}, ReduceAxis::kShard).wait();
//   optimizer.step(store.shard(unit), scalars);
//   store.close(Slot{SlotKind::kGradShard, unit});

#include <palimpsest/core/contracts/ticket.h>
#include <palimpsest/core/plan/op.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest {

/// Consecutive elements of a shard that share a learning rate factor and a decay.
struct GroupRange {
  int64_t begin = 0;
  int64_t end = 0;
  double learning_rate_factor = 1;
  double weight_decay = 0;
};

/// What one rank updates of one unit. Whole units and shards look the same.
struct ParamShard {
  at::Tensor parameters; // flat, as the unit holds them
  at::Tensor master; // flat fp32; undefined where the parameters themselves are updated
  at::Tensor gradient; // flat fp32 or bf16; undefined while its slot is not live
  std::vector<at::Tensor> moments; // flat fp32 or bf16, as many as Optimizer::moment_count
  std::vector<GroupRange> groups; // cover the shard without gaps
  int unit = 0; // which one, and the shard's first element in it: what is rounded stochastically
  int64_t begin = 0; // depends on these, not on the layout

  /// The values that training changes: the master where there is one.
  const at::Tensor& values() const {
    return master.defined() ? master : parameters;
  }
};

class ParamStore {
 public:
  virtual ~ParamStore() = default;

  /// Makes a unit's parameters whole for its blocks, and frees them again.
  virtual Ticket gather(int unit) = 0;
  virtual void release(int unit) = 0;

  /// A gradient slot (grad_buffer, grad_shard) begins and counts as zeros; a slot of a unit is freed.
  virtual void open(const Slot& slot) = 0;
  virtual void close(const Slot& slot) = 0;
  /// The tensors of a unit's slot, for stashing and fetching.
  virtual std::vector<at::Tensor*> tensors(const Slot& slot) = 0;

  /// Sums micro-batches [first, stop) of a gradient over the ranks of an axis; kShard also adds
  /// this rank's part to its running shard.
  virtual Ticket reduce(int unit, MicroBatchRange micro_batches, ReduceAxis axis) = 0;

  /// All-gathers a unit's updated parameters where they are whole but their optimizer is sharded.
  virtual Ticket publish(int unit) = 0;

  /// What this rank updates; its gradient is complete as of this call. The reference stays valid as
  /// long as the store.
  virtual ParamShard& shard(int unit) = 0;
};

} // namespace palimpsest
