#include <palimpsest/core/models/linear_block.h>

#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/core/models/block_support.h>
#include <palimpsest/core/models/weight_jobs.h>

#include <fmt/format.h>

#include <utility>

namespace palimpsest {
namespace {

/// What the weight is multiplied with. Features come in fp32 whatever the model computes in.
at::Tensor operand(const LinearLayer& layer, const at::Tensor& x, at::ScalarType type) {
  const at::Tensor converted = x.to(type);
  return layer.activation ? kernels::activation_forward(converted, *layer.activation) : converted;
}

class LinearTape : public Tape {
 public:
  /// `activated`: undefined where the tape is lean or there is no activation.
  LinearTape(LinearLayer layer, at::Tensor activated, bool graded)
      : layer_(layer), activated_(std::move(activated)), graded_(graded) {}

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
    const at::Tensor& x = inputs[0];
    const at::Tensor& dy = grad_outputs[0];
    at::Tensor activated = std::exchange(activated_, {});
    if (!activated.defined() && layer_.weight.trainable()) {
      activated = operand(layer_, x, dy.scalar_type());
    }
    jobs_.linear(dy, std::exchange(activated, {}), layer_.weight, layer_.bias);
    if (!graded_) {
      return {at::Tensor()};
    }
    at::Tensor dx = kernels::linear_backward_input(dy, layer_.weight.view());
    if (layer_.activation) {
      kernels::activation_backward(dx, x, *layer_.activation, dx);
    }
    return {dx};
  }

  std::vector<at::Tensor*> tensors() override {
    std::vector<at::Tensor*> result = jobs_.tensors();
    if (activated_.defined()) {
      result.push_back(&activated_);
    }
    return result;
  }

 private:
  LinearLayer layer_;
  at::Tensor activated_; // [B,K]
  bool graded_; // whether the input's gradient is wanted
  WeightJobs jobs_;
};

} // namespace

ForwardResult LinearBlock::forward(
    TensorSpan inputs,
    const ForwardRequest& request,
    const BlockContext& /*context*/) {
  const bool keeps =
      request.tape == TapeMode::kFull && layer_.activation && layer_.weight.trainable();
  const at::Tensor weight = layer_.weight.view();
  at::Tensor activated;
  if (yields(request) || keeps) {
    activated = operand(layer_, inputs[0], weight.scalar_type());
  }
  ForwardResult result;
  if (yields(request)) {
    result.values = {kernels::linear_forward(activated, weight, layer_.bias.view())};
  }
  if (request.tape != TapeMode::kNone) {
    result.tape =
        std::make_unique<LinearTape>(layer_, keeps ? activated : at::Tensor(), grades(request));
  }
  return result;
}

double LinearBlock::forward_flops(TensorSpan inputs) const {
  const double numel = static_cast<double>(inputs[0].numel());
  return 2 * numel * static_cast<double>(layer_.weight.rows());
}

double LinearBlock::value_flops(TensorSpan inputs) const {
  return forward_flops(inputs);
}

double LinearBlock::backward_flops(TensorSpan inputs) const {
  return (layer_.weight.trainable() ? 2 : 1) * forward_flops(inputs);
}

std::string LinearBlock::kind() const {
  return fmt::format(
      "linear {}{}", layer_.weight.rows(), layer_.activation.has_value() ? " activated" : "");
}

} // namespace palimpsest
