#include <palimpsest/core/models/residual_tape.h>

#include <palimpsest/core/models/block_support.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace palimpsest {

Tensors ResidualTape::backward(
    TensorSpan inputs,
    TensorSpan grad_outputs,
    BackwardPart part,
    const BlockContext& context) {
  if (part == BackwardPart::kWeight) {
    jobs_.run();
    return {};
  }
  check(statistics.defined(), "a residual block's tape is spent twice");
  jobs_.defer(part == BackwardPart::kInput);
  at::Tensor dinner = inner_gradient(grad_outputs[0], inputs[0], context);

  const at::Tensor rows = as_rows(inputs[0]);
  if (!normed.defined() && inner_.backward_reads_input()) {
    normed = norm_.forward(rows).y;
  }
  jobs_.linear(dinner, normed, inner_, context);
  normed.reset();
  if (!graded_ && !norm_.trainable()) {
    statistics.reset();
    return {at::Tensor()};
  }
  const at::Tensor dnormed = inner_.backward_input(dinner, context);
  dinner.reset();
  const at::Tensor dx =
      jobs_.norm(dnormed, rows, norm_, std::exchange(statistics, {}), as_rows(grad_outputs[0]));
  return {graded_ ? dx.view(inputs[0].sizes()) : at::Tensor()};
}

std::vector<at::Tensor*> ResidualTape::tensors() {
  std::vector<at::Tensor*> result = jobs_.tensors();
  std::vector<at::Tensor*> held = branch_tensors();
  held.insert(held.begin(), {&normed, &statistics});
  std::ranges::copy_if(
      held, std::back_inserter(result), [](const at::Tensor* tensor) { return tensor->defined(); });
  return result;
}

} // namespace palimpsest
