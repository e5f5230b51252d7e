#pragma once

// Any function of LibTorch operations as a block: autograd writes its backward.
//
//   BlockUnits made = add_units(chain, "scale", {{{.name = "scale.weight", .shape = {}}}}, at::kFloat, trainable);
//   AutogradBlock block({
//       .kind = "scale",
//       .function = [](const AutogradCall& call) -> Tensors { return {call.inputs[0] * call.parameters[0]}; },
//       .parameters = made.refs});
//
// The function sees its inputs and parameters as leaves and must do everything that needs a
// gradient in LibTorch operations. Inputs are not to be changed in place. Randomness comes from
// kernels::dropout_factors and the context, never from LibTorch's generators, so that a recompute
// repeats it.
//
// The tape owns what autograd saved, except views of parameters and of the declared inputs
// (saved_tensors.h). Autograd cannot say what is cheap to redo, so a lean tape is a full one.
// Parameters' gradients are added into the units' fp32 buffers by autograd itself; an operation on
// bf16 still computes its own contribution in bf16.
//
// part = kInput runs the whole backward and keeps the parameters' gradients (fp32, as large as the
// parameters) in the tape; kWeight adds them: the same bits as kBoth, but nothing is deferred
// except the addition.
//
// Buffers (running statistics, counters) are changed in place by the function. The first forward of
// a micro-batch in a step starts from what the one before left; a recompute starts from the same
// values and its changes are thrown away; commit(true) makes the step's changes persistent,
// commit(false) drops them. Outside training they stay as they are.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/models/param_ref.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace palimpsest {

struct AutogradCall {
  TensorSpan inputs; // in the order of the block's reads
  TensorSpan parameters; // in the order of AutogradSpec::parameters
  std::span<at::Tensor> buffers; // to be changed in place
  const BlockContext& context;
};

/// Returns the block's values.
using AutogradFunction = std::function<Tensors(const AutogradCall&)>;

struct AutogradSpec {
  std::string kind; // Block::kind
  AutogradFunction function;
  std::vector<ParamRef> parameters = {};
  Tensors buffers = {}; // their first values
  /// By read: whether it is among ChainBlock::saves, so that the tape does not own it. Empty: all
  /// are.
  std::vector<bool> saved_inputs = {};
  /// Block::forward_flops; 0 where absent.
  std::function<double(TensorSpan)> flops = {};
};

class AutogradBlock : public Block {
 public:
  explicit AutogradBlock(AutogradSpec spec);

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) override;
  double forward_flops(TensorSpan inputs) const override;
  std::string kind() const override {
    return spec_.kind;
  }
  void commit(bool keep) override;

  /// The persistent buffers.
  const Tensors& buffers() const {
    return spec_.buffers;
  }

 private:
  Tensors buffers_before(const BlockContext& context);

  AutogradSpec spec_;
  Tensors working_; // after the step's last first forward; empty: none yet
  std::map<int, Tensors> before_; // by micro-batch: the buffers that its first forward started from
};

/// A loss as a function of LibTorch operations: the block's one value is the scalar loss_sum.
class AutogradTerminal : public TerminalBlock {
 public:
  explicit AutogradTerminal(AutogradSpec spec) : block_(std::move(spec)) {}

  LossResult forward(TensorSpan inputs, bool gradient, const BlockContext& context) override;
  double forward_flops(TensorSpan inputs) const override {
    return block_.forward_flops(inputs);
  }
  std::string kind() const override {
    return block_.kind();
  }
  void commit(bool keep) override {
    block_.commit(keep);
  }

 private:
  AutogradBlock block_;
};

} // namespace palimpsest
