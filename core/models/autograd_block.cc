#include <palimpsest/core/models/autograd_block.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/saved_tensors.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace palimpsest {
namespace {

/// A leaf of the graph that shares the tensor's storage.
at::Tensor make_leaf(const at::Tensor& tensor, bool requires_grad) {
  at::Tensor leaf = tensor.detach();
  leaf.set_requires_grad(requires_grad);
  return leaf;
}

/// The graph holds its leaves, and these would hold the storages of inputs and parameters: leaves
/// it their sizes only.
void let_go(at::Tensor& leaf) {
  if (leaf.requires_grad()) {
    leaf.set_data(at::empty({}, leaf.options().requires_grad(false)).expand(leaf.sizes()));
  } else {
    leaf.reset();
  }
}

void execute(
    const torch::autograd::edge_list& roots,
    const torch::autograd::variable_list& gradients) {
  torch::autograd::Engine::get_default_engine().execute(
      roots,
      gradients,
      /*keep_graph=*/false,
      /*create_graph=*/false,
      /*accumulate_grad=*/true);
}

/// After an error the engine holds what the failed graph saved until it runs another one.
void flush_engine() {
  const at::Tensor leaf = make_leaf(at::zeros({1}), true);
  execute({torch::autograd::impl::gradient_edge(leaf)}, {at::ones({1})});
}

Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.clone());
  }
  return result;
}

class AutogradTape : public Tape {
 public:
  AutogradTape(
      std::shared_ptr<SavedTensors> saved,
      const Tensors& outputs,
      Tensors input_leaves,
      Tensors parameter_leaves,
      std::vector<ParamRef> parameters)
      : saved_(std::move(saved)), input_leaves_(std::move(input_leaves)),
        parameter_leaves_(std::move(parameter_leaves)), parameters_(std::move(parameters)) {
    for (const at::Tensor& output : outputs) {
      roots_.push_back(
          output.requires_grad() ? torch::autograd::impl::gradient_edge(output)
                                 : torch::autograd::Edge());
    }
    std::ranges::for_each(input_leaves_, let_go);
    std::ranges::for_each(parameter_leaves_, let_go);
  }

  Tensors backward(
      TensorSpan inputs,
      TensorSpan grad_outputs,
      BackwardPart part,
      const BlockContext& context) override;

  std::vector<at::Tensor*> tensors() override {
    std::vector<at::Tensor*> result = saved_->tensors();
    for (at::Tensor& gradient : pending_) {
      if (gradient.defined()) {
        result.push_back(&gradient);
      }
    }
    return result;
  }

 private:
  void run_engine(TensorSpan grad_outputs);
  void add_pending();

  std::shared_ptr<SavedTensors> saved_;
  torch::autograd::edge_list roots_; // one per value, invalid where it needs no gradient
  Tensors input_leaves_; // undefined where no gradient is asked for
  Tensors parameter_leaves_; // undefined where frozen
  std::vector<ParamRef> parameters_;
  Tensors pending_; // the parameters' gradients between kInput and kWeight
  bool spent_ = false;
};

void AutogradTape::add_pending() {
  for (size_t index = 0; index < pending_.size(); ++index) {
    if (pending_[index].defined()) {
      parameters_[index].grad().add_(pending_[index]);
    }
  }
  pending_.clear();
}

void AutogradTape::run_engine(TensorSpan grad_outputs) {
  torch::autograd::edge_list roots;
  torch::autograd::variable_list gradients;
  for (size_t index = 0; index < roots_.size(); ++index) {
    if (roots_[index].is_valid() && grad_outputs[index].defined()) {
      roots.push_back(std::move(roots_[index]));
      gradients.push_back(grad_outputs[index]);
    }
  }
  roots_.clear();
  if (!roots.empty()) {
    try {
      execute(roots, gradients);
    } catch (...) {
      flush_engine();
      throw;
    }
  }
}

Tensors AutogradTape::backward(
    TensorSpan inputs,
    TensorSpan grad_outputs,
    BackwardPart part,
    const BlockContext& /*context*/) {
  if (part == BackwardPart::kWeight) {
    add_pending();
    return {};
  }
  check(!std::exchange(spent_, true), "an autograd tape is spent twice");
  check(grad_outputs.size() == roots_.size(), "a backward is given another number of gradients");
  saved_->bind_inputs(inputs);
  std::vector<bool> in_place(parameters_.size()); // only an fp32 buffer can be a leaf's gradient
  for (size_t index = 0; index < parameters_.size(); ++index) {
    in_place[index] = part == BackwardPart::kBoth && parameter_leaves_[index].defined() &&
        parameters_[index].unit()->grad().scalar_type() == at::kFloat;
    if (in_place[index]) {
      parameter_leaves_[index].mutable_grad() = parameters_[index].grad();
    }
  }
  run_engine(grad_outputs);
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const at::Tensor& leaf = parameter_leaves_[index];
    pending_.push_back(leaf.defined() && !in_place[index] ? leaf.grad() : at::Tensor());
  }
  if (part == BackwardPart::kBoth) {
    add_pending();
  }
  Tensors result;
  for (const at::Tensor& leaf : input_leaves_) {
    at::Tensor gradient = leaf.defined() ? leaf.grad() : at::Tensor();
    if (leaf.defined() && !gradient.defined()) { // the function does not use this input
      gradient = at::zeros(leaf.sizes(), leaf.options().requires_grad(false));
    }
    // What comes out is added to in place, so it must not be what came in (a value passed through).
    const bool shared =
        gradient.defined() && std::ranges::any_of(grad_outputs, [&](const at::Tensor& other) {
          return other.defined() && gradient.is_alias_of(other);
        });
    result.push_back(shared ? gradient.clone() : gradient);
  }
  input_leaves_.clear();
  parameter_leaves_.clear();
  saved_ =
      std::make_shared<SavedTensors>(TensorSpan(), std::vector<bool>(), std::vector<ParamUnit*>());
  return result;
}

std::vector<ParamUnit*> units_of(const std::vector<ParamRef>& parameters) {
  std::vector<ParamUnit*> units;
  for (const ParamRef& parameter : parameters) {
    if (std::ranges::find(units, parameter.unit()) == units.end()) {
      units.push_back(parameter.unit());
    }
  }
  return units;
}

std::vector<int64_t> versions_of(TensorSpan tensors) {
  std::vector<int64_t> versions;
  for (const at::Tensor& tensor : tensors) {
    versions.push_back(tensor._version());
  }
  return versions;
}

} // namespace

AutogradBlock::AutogradBlock(AutogradSpec spec) : spec_(std::move(spec)) {
  check(std::ranges::all_of(spec_.parameters, &ParamRef::present), "an absent parameter");
}

ForwardResult AutogradBlock::forward(
    TensorSpan inputs,
    const ForwardRequest& request,
    const BlockContext& context) {
  const bool taped = request.tape != TapeMode::kNone;
  const at::AutoGradMode grad_mode(taped);
  Tensors input_leaves;
  for (size_t index = 0; index < inputs.size(); ++index) {
    const bool graded = request.graded_inputs.empty() || request.graded_inputs[index];
    input_leaves.push_back(
        make_leaf(inputs[index], taped && graded && inputs[index].is_floating_point()));
  }
  Tensors parameter_leaves;
  for (const ParamRef& parameter : spec_.parameters) {
    parameter_leaves.push_back(make_leaf(parameter.view(), taped && parameter.trainable()));
    if (parameter_leaves.back().requires_grad()) {
      // Otherwise autograd rounds to the parameter's dtype before it adds to the buffer.
      parameter_leaves.back().set_grad_dtype(at::kFloat);
    }
  }
  std::vector<bool> is_saved = spec_.saved_inputs;
  is_saved.resize(inputs.size(), spec_.saved_inputs.empty());
  const auto saved = std::make_shared<SavedTensors>(inputs, is_saved, units_of(spec_.parameters));
  const std::vector<int64_t> versions = versions_of(inputs);
  const bool first_forward = !before_.contains(context.micro_batch);
  Tensors buffers = buffers_before(context);
  Tensors outputs;
  {
    std::optional<SavedTensors::Recording> recording;
    if (taped) {
      recording.emplace(saved);
    }
    outputs = spec_.function({input_leaves, parameter_leaves, buffers, context});
  }
  saved->finish();
  check(versions_of(inputs) == versions, "block '{}' changes an input in place", spec_.kind);
  if (context.training && first_forward) {
    working_ = std::move(buffers);
  }

  ForwardResult result;
  for (const int index : request.yields) {
    result.values.push_back(outputs.at(static_cast<size_t>(index)).detach());
  }
  if (taped) {
    result.tape = std::make_unique<AutogradTape>(
        saved, outputs, std::move(input_leaves), std::move(parameter_leaves), spec_.parameters);
  }
  return result;
}

/// Copies of what this forward starts from.
Tensors AutogradBlock::buffers_before(const BlockContext& context) {
  if (!context.training || spec_.buffers.empty()) {
    return copies(spec_.buffers);
  }
  const auto [entry, first] =
      before_.try_emplace(context.micro_batch, working_.empty() ? spec_.buffers : working_);
  return copies(entry->second);
}

void AutogradBlock::commit(bool keep) {
  if (keep && !working_.empty()) {
    spec_.buffers = std::move(working_);
  }
  working_.clear();
  before_.clear();
}

double AutogradBlock::forward_flops(TensorSpan inputs) const {
  return spec_.flops ? spec_.flops(inputs) : 0;
}

LossResult AutogradTerminal::forward(
    TensorSpan inputs,
    bool gradient,
    const BlockContext& context) {
  ForwardRequest request{
      .tape = gradient ? TapeMode::kFull : TapeMode::kNone, .yields = {0}, .graded_inputs = {}};
  const ForwardResult done = block_.forward(inputs, request, context);
  LossResult result{.loss_sum = done.values[0].item<double>(), .grad_inputs = {}};
  if (gradient) {
    const Tensors scale = {at::full_like(done.values[0], context.loss_scale)};
    result.grad_inputs = done.tape->backward(inputs, scale, BackwardPart::kBoth, context);
  }
  return result;
}

} // namespace palimpsest
