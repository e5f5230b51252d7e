#pragma once

// The computing operations of one run of a plan: a block's FORWARD and BACKWARD between the slots
// of a table.
//
//   BlockOps blocks(chain, memory, job, inputs, table);
//   blocks.forward(op);
//   blocks.losses()[op.mb];

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/engine/executor.h>
#include <palimpsest/core/engine/slot_table.h>
#include <palimpsest/core/plan/job.h>

#include <cstdint>
#include <vector>

namespace palimpsest {

class BlockOps {
 public:
  /// All references outlive it.
  BlockOps(
      Chain& chain,
      MemoryContext& memory,
      const Job& job,
      const StepInputs& inputs,
      SlotTable& table);

  /// Of a block, or of the terminal one.
  void forward(const Op& op);
  void backward(const Op& op);

  /// By micro-batch; 0 before the terminal block's FORWARD.
  const std::vector<double>& losses() const {
    return losses_;
  }
  int64_t forwards() const {
    return forwards_;
  }
  int64_t backwards() const {
    return backwards_;
  }

 private:
  void forward_terminal(const Op& op);
  Tensors values(const std::vector<ValueRef>& reads, int mb);
  std::vector<bool> graded(const std::vector<ValueRef>& reads) const;
  void add_gradients(const std::vector<ValueRef>& reads, const Tensors& grads, int mb);
  BlockContext context(const Op& op) const;

  Chain& chain_;
  MemoryContext& memory_;
  const Job& job_;
  const StepInputs& inputs_;
  SlotTable& table_;
  std::vector<double> losses_;
  int64_t forwards_ = 0;
  int64_t backwards_ = 0;
};

} // namespace palimpsest
