#pragma once

// The smallest chains: every block multiplies its input by one scalar, so that losses and gradients
// have closed forms. Counts what runs.

#include <palimpsest/core/contracts/chain.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::testing {

struct Counts {
  int forwards = 0;
  int backwards = 0;
  int live_tapes = 0;
  int commits = 0;
  int discards = 0;
  int throw_at = -1; // the backward that fails
};

/// y = w x; the tape needs x.
class ScaleBlock final : public Block {
 public:
  ScaleBlock(ParamUnit& unit, Counts& counts) : unit_(unit), counts_(counts) {}

  class ScaleTape final : public Tape {
   public:
    ScaleTape(ParamUnit& unit, Counts& counts) : unit_(unit), counts_(counts) {
      ++counts_.live_tapes;
    }
    ScaleTape(const ScaleTape&) = delete;
    ScaleTape& operator=(const ScaleTape&) = delete;
    ~ScaleTape() override {
      --counts_.live_tapes;
    }
    Tensors backward(
        TensorSpan inputs,
        TensorSpan grad_outputs,
        BackwardPart part,
        const BlockContext& /*context*/) override {
      if (part == BackwardPart::kWeight) {
        add(job_);
        return {};
      }
      if (counts_.backwards++ == counts_.throw_at) {
        throw std::runtime_error("injected");
      }
      const at::Tensor grad_weight = (grad_outputs[0] * inputs[0]).sum();
      if (part == BackwardPart::kInput) {
        job_ = grad_weight;
      } else {
        add(grad_weight);
      }
      return {grad_outputs[0] * unit_.view(0)};
    }
    std::vector<at::Tensor*> tensors() override {
      return {&job_};
    }

   private:
    void add(const at::Tensor& gradient) {
      if (unit_.trainable()) {
        unit_.grad_view(0).add_(gradient);
      }
    }
    ParamUnit& unit_;
    Counts& counts_;
    at::Tensor job_;
  };

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& /*context*/) override {
    ++counts_.forwards;
    ForwardResult result;
    if (!request.yields.empty()) {
      result.values.push_back(inputs[0] * unit_.view(0));
    }
    if (request.tape != TapeMode::kNone) {
      result.tape = std::make_unique<ScaleTape>(unit_, counts_);
    }
    return result;
  }
  double forward_flops(TensorSpan inputs) const override {
    return static_cast<double>(inputs[0].numel());
  }
  std::string kind() const override {
    return "scale";
  }
  void commit(bool keep) override {
    ++(keep ? counts_.commits : counts_.discards);
  }

 private:
  ParamUnit& unit_;
  Counts& counts_;
};

/// The loss of a target is its input; labels that are no target count nothing.
class SumLoss final : public TerminalBlock {
 public:
  LossResult forward(TensorSpan inputs, bool gradient, const BlockContext& context) override {
    const at::Tensor mask = context.batch->labels.ne(kIgnoredLabel).to(at::kFloat);
    LossResult result{.loss_sum = (inputs[0] * mask).sum().item().toDouble(), .grad_inputs = {}};
    if (gradient) {
      result.grad_inputs.push_back(mask * context.loss_scale);
    }
    return result;
  }
  double forward_flops(TensorSpan inputs) const override {
    return static_cast<double>(inputs[0].numel());
  }
  std::string kind() const override {
    return "sum";
  }
};

/// Layers layers.0 ... of one block each, over `weights` scalars; block i uses unit use[i].
inline Chain scalar_chain(int units, const std::vector<int>& use, Counts& counts) {
  Chain chain;
  for (int unit = 0; unit < units; ++unit) {
    const std::string name = "w" + std::to_string(unit);
    chain.units.push_back(std::make_unique<ParamUnit>(
        name, std::vector<Parameter>{{.name = name, .shape = {}}}, at::kFloat, true));
  }
  for (size_t index = 0; index < use.size(); ++index) {
    ChainBlock entry;
    entry.block =
        std::make_unique<ScaleBlock>(*chain.units[static_cast<size_t>(use[index])], counts);
    entry.name = "layers." + std::to_string(index);
    const int number = static_cast<int>(index);
    entry.reads = entry.saves = {{number - 1, 0}};
    entry.units = {use[index]};
    chain.blocks.push_back(std::move(entry));
    chain.layers.push_back({"layers." + std::to_string(index), {number, number + 1}});
  }
  chain.terminal = std::make_unique<SumLoss>();
  chain.terminal_reads = {{static_cast<int>(use.size()) - 1, 0}};
  return chain;
}

/// One row of token losses; a negative value is no target.
inline MicroBatch token_losses(const std::vector<float>& losses) {
  MicroBatch batch;
  batch.inputs = at::empty({1, static_cast<int64_t>(losses.size())}, at::kFloat);
  batch.labels = at::zeros({1, static_cast<int64_t>(losses.size())}, at::kLong);
  for (size_t index = 0; index < losses.size(); ++index) {
    batch.inputs.data_ptr<float>()[index] = losses[index];
    if (losses[index] < 0) {
      batch.labels.data_ptr<int64_t>()[index] = kIgnoredLabel;
    }
  }
  batch.target_count = std::ranges::count_if(losses, [](float loss) { return loss >= 0; });
  batch.token_count = static_cast<int64_t>(losses.size());
  return batch;
}

} // namespace palimpsest::testing
