#include <palimpsest/core/engine/block_ops.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace palimpsest {
namespace {

Slot value_slot(const ValueRef& ref, int mb) {
  return {SlotKind::kValue, ref.producer, ref.index, mb};
}

Slot grad_slot(const ValueRef& ref, int mb) {
  return {SlotKind::kGrad, ref.producer, ref.index, mb};
}

} // namespace

BlockOps::BlockOps(
    Chain& chain,
    MemoryContext& memory,
    const Job& job,
    const StepInputs& inputs,
    SlotTable& table)
    : chain_(chain), memory_(memory), job_(job), inputs_(inputs), table_(table),
      losses_(inputs.batches.size()) {}

void BlockOps::forward(const Op& op) {
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  if (op.block == chain_.terminal_index()) {
    return forward_terminal(op);
  }
  const ChainBlock& entry = chain_.blocks[static_cast<size_t>(op.block)];
  ForwardRequest request{.tape = op.tape, .yields = {}, .graded_inputs = graded(entry.reads)};
  for (int index = 0; index < entry.values; ++index) {
    if (op.yields.contains(index)) {
      request.yields.push_back(index);
    }
  }
  ForwardResult result = entry.block->forward(values(entry.reads, op.mb), request, context(op));
  for (size_t number = 0; number < request.yields.size(); ++number) {
    table_.keep(value_slot({op.block, request.yields[number]}, op.mb), result.values[number]);
  }
  if (result.tape != nullptr) {
    table_.keep({SlotKind::kTape, op.block, 0, op.mb}, std::move(result.tape));
  }
  ++forwards_;
}

void BlockOps::forward_terminal(const Op& op) {
  const std::vector<ValueRef>& reads = chain_.terminal_reads;
  const LossResult result =
      chain_.terminal->forward(values(reads, op.mb), op.tape != TapeMode::kNone, context(op));
  losses_[static_cast<size_t>(op.mb)] = result.loss_sum;
  add_gradients(reads, result.grad_inputs, op.mb);
  ++forwards_;
}

void BlockOps::backward(const Op& op) {
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  const Slot jobs{SlotKind::kWeightJobs, op.block, 0, op.mb};
  if (op.part == BackwardPart::kWeight) {
    table_.tape(jobs).backward({}, {}, op.part, context(op));
    return;
  }
  const ChainBlock& entry = chain_.blocks[static_cast<size_t>(op.block)];
  Tensors saved;
  for (const ValueRef& read : entry.reads) {
    const bool needed = std::ranges::find(entry.saves, read) != entry.saves.end();
    saved.push_back(needed ? table_.tensor(value_slot(read, op.mb)) : at::Tensor());
  }
  Tensors grads(static_cast<size_t>(entry.values));
  for (const int index : job_.read_values(op.block)) {
    grads[static_cast<size_t>(index)] = table_.tensor(grad_slot({op.block, index}, op.mb));
  }
  std::unique_ptr<Tape> tape = table_.take_tape({SlotKind::kTape, op.block, 0, op.mb});
  add_gradients(entry.reads, tape->backward(saved, grads, op.part, context(op)), op.mb);
  if (op.part == BackwardPart::kInput) {
    table_.keep(jobs, std::move(tape));
  }
  ++backwards_;
}

Tensors BlockOps::values(const std::vector<ValueRef>& reads, int mb) {
  Tensors found;
  for (const ValueRef& read : reads) {
    found.push_back(table_.tensor(value_slot(read, mb)));
  }
  return found;
}

std::vector<bool> BlockOps::graded(const std::vector<ValueRef>& reads) const {
  std::vector<bool> needed;
  for (const ValueRef& read : reads) {
    needed.push_back(read.producer != kLoader && job_.differentiable(read.producer));
  }
  return needed;
}

void BlockOps::add_gradients(const std::vector<ValueRef>& reads, const Tensors& grads, int mb) {
  const std::vector<bool> needed = graded(reads);
  for (size_t number = 0; number < grads.size(); ++number) {
    for (size_t other = 0; other < number; ++other) {
      const bool both = grads[number].defined() && grads[other].defined();
      check(
          !both || !grads[number].is_alias_of(grads[other]),
          "a block returned one tensor as the gradient of two inputs");
    }
    if (needed[number]) {
      table_.add(grad_slot(reads[number], mb), grads[number]);
    }
  }
}

BlockContext BlockOps::context(const Op& op) const {
  return {
      .batch = &inputs_.batches[static_cast<size_t>(op.mb)],
      .seed = inputs_.seed,
      .step = inputs_.step,
      .micro_batch = op.mb,
      .training = job_.training(),
      .loss_scale = inputs_.loss_scale * inputs_.gradient_scale};
}

} // namespace palimpsest
