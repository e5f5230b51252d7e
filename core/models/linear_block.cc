#include <palimpsest/core/models/linear_block.h>

#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/core/models/block_support.h>
#include <palimpsest/core/models/weight_jobs.h>

#include <fmt/format.h>

#include <utility>

namespace palimpsest {
namespace {

class LinearTape : public Tape {
 public:
  LinearTape(LinearLayer layer, at::Tensor activation_input, bool graded)
      : layer_(layer), activation_input_(std::move(activation_input)), graded_(graded) {}

  Tensors backward(
      TensorSpan inputs,
      TensorSpan grad_outputs,
      BackwardPart part,
      const BlockContext& /*context*/) override {
    if (part == BackwardPart::kWeight) {
      jobs_.run();
      return {};
    }
    jobs_.defer(part == BackwardPart::kInput);
    at::Tensor dy = grad_outputs[0];
    if (layer_.activation.has_value()) {
      check(activation_input_.defined(), "a linear layer's tape is spent twice");
      dy = kernels::activation_backward(
          dy, std::exchange(activation_input_, {}), *layer_.activation);
    }
    jobs_.linear(dy, inputs[0].to(dy.scalar_type()), layer_.weight, layer_.bias);
    return {graded_ ? kernels::linear_backward_input(dy, layer_.weight.view()) : at::Tensor()};
  }

  std::vector<at::Tensor*> tensors() override {
    std::vector<at::Tensor*> result = jobs_.tensors();
    if (activation_input_.defined()) {
      result.push_back(&activation_input_);
    }
    return result;
  }

 private:
  LinearLayer layer_;
  at::Tensor activation_input_; // [B,N]
  bool graded_; // whether the input's gradient is wanted
  WeightJobs jobs_;
};

} // namespace

ForwardResult LinearBlock::forward(
    TensorSpan inputs,
    const ForwardRequest& request,
    const BlockContext& /*context*/) {
  const bool wanted = yields(request);
  const bool taped = request.tape != TapeMode::kNone;
  at::Tensor product; // a tape without an activation needs none
  if (wanted || (taped && layer_.activation.has_value())) {
    // Features come in fp32 whatever the model computes in.
    const at::Tensor weight = layer_.weight.view();
    product =
        kernels::linear_forward(inputs[0].to(weight.scalar_type()), weight, layer_.bias.view());
  }
  ForwardResult result;
  if (wanted) {
    result.values = {
        layer_.activation.has_value() ? kernels::activation_forward(product, *layer_.activation)
                                      : product};
  }
  if (taped) {
    result.tape = std::make_unique<LinearTape>(
        layer_, layer_.activation.has_value() ? product : at::Tensor(), grades(request));
  }
  return result;
}

double LinearBlock::forward_flops(TensorSpan inputs) const {
  const double numel = static_cast<double>(inputs[0].numel());
  return 2 * numel * static_cast<double>(layer_.weight.rows());
}

std::string LinearBlock::kind() const {
  return fmt::format(
      "linear {}{}", layer_.weight.rows(), layer_.activation.has_value() ? " activated" : "");
}

} // namespace palimpsest
