#pragma once

// The model is a chain of blocks. A block computes; it knows no strategy: not whether its
// parameters were gathered, its inputs recomputed or its gradients will be reduced.
//
//   ForwardResult result = block.forward(inputs, {TapeMode::kFull, {0}}, context);
//   std::vector<at::Tensor> grads = result.tape->backward(inputs, grad_outputs, BackwardPart::kBoth, context);

#include <palimpsest/core/contracts/micro_batch.h>
#include <palimpsest/core/contracts/param_unit.h>
#include <palimpsest/core/plan/op.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace palimpsest {

using Tensors = std::vector<at::Tensor>;
using TensorSpan = std::span<const at::Tensor>;

/// What a computation may use beyond its operands. The same for the first run of a block and for a
/// recompute.
struct BlockContext {
  const MicroBatch* batch = nullptr;
  uint64_t seed = 0; // of the run
  uint64_t step = 0; // optimizer step, from 0
  int micro_batch = 0; // index in this rank's step
  bool training = true; // false: dropout is off, buffers stay
  double loss_scale = 1; // d(step's loss) / d(sum of token losses): 1 / targets of the whole step
};

/// What one block's backward needs, as a value. It owns no copy of the inputs that the block
/// declared as saved (they are slots of their own) and holds parameters by their unit, so it stays
/// valid over a release and a new gather.
class Tape {
 public:
  virtual ~Tape() = default;

  /// Gradients of the block's inputs, in the order of Block::reads (undefined where one needs no
  /// gradient). Adds the weight gradients into the units' buffers, unless `part` is kInput: then
  /// they are queued in the tape and done by a later call with kWeight, which takes no operands and
  /// returns nothing. Spends the tape. The returned tensors are fresh: aliases neither of
  /// `grad_outputs` nor of each other, since other readers' gradients are added into them in place.
  virtual Tensors backward(
      TensorSpan inputs,
      TensorSpan grad_outputs,
      BackwardPart part,
      const BlockContext& context) = 0;

  /// The tensors it owns, replaceable one by one: this is how it is stashed and fetched. The
  /// pointers stay valid until backward. Two entries may share a storage.
  virtual std::vector<at::Tensor*> tensors() = 0;
};

struct ForwardRequest {
  TapeMode tape = TapeMode::kFull;
  /// Which of the block's values somebody reads; what is not asked for need not be computed.
  std::vector<int> yields = {0};
  /// By read: whether the tape's backward must give that input's gradient. Empty: all must.
  std::vector<bool> graded_inputs;
};

struct ForwardResult {
  Tensors values; // one per entry of `yields`
  std::unique_ptr<Tape> tape; // null where TapeMode::kNone was asked for
};

class Block {
 public:
  virtual ~Block() = default;

  virtual ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) = 0;

  /// Floating point operations of one forward on inputs of these sizes (a multiplication and an
  /// addition are two), and of one backward.
  virtual double forward_flops(TensorSpan inputs) const = 0;
  /// Of forward_flops, those that only the values need: a forward that yields nothing skips them.
  virtual double value_flops(TensorSpan /*inputs*/) const {
    return 0;
  }
  virtual double backward_flops(TensorSpan inputs) const {
    return 2 * forward_flops(inputs);
  }

  /// Blocks with equal kinds cost the same on inputs of equal sizes: one of them is profiled for
  /// all.
  virtual std::string kind() const = 0;

  /// Ends a step: what forward recorded for persistent buffers (running statistics) takes effect,
  /// or is thrown away.
  virtual void commit(bool /*keep*/) {}
};

struct LossResult {
  double loss_sum = 0; // over the micro-batch's targets, unscaled
  Tensors grad_inputs; // in the order of the block's reads, fresh; empty without gradient
};

/// The end of a chain: head and loss. Its forward is its backward too, so that no tape and, in
/// chunks, no whole logits exist.
class TerminalBlock {
 public:
  virtual ~TerminalBlock() = default;

  /// With `gradient`: also the inputs' gradients of context.loss_scale * loss_sum; adds the weight
  /// gradients.
  virtual LossResult forward(TensorSpan inputs, bool gradient, const BlockContext& context) = 0;
  virtual double forward_flops(TensorSpan inputs) const = 0;
  virtual std::string kind() const = 0;
  /// As Block::commit.
  virtual void commit(bool /*keep*/) {}
};

} // namespace palimpsest
