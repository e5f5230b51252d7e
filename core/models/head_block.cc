#include <palimpsest/core/models/head_block.h>

#include <palimpsest/core/kernels/cross_entropy.h>
#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/core/models/block_support.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace palimpsest {
namespace {

int64_t rows_of_chunk(const HeadShape& shape, const at::Tensor& weight) {
  const int64_t row_bytes = weight.size(0) * static_cast<int64_t>(weight.element_size());
  return std::max(kMinHeadRows, shape.chunk_bytes / std::max<int64_t>(row_bytes, 1));
}

} // namespace

LossResult HeadBlock::forward(TensorSpan inputs, bool gradient, const BlockContext& context) {
  const at::Tensor x = as_rows(inputs[0]);
  const at::Tensor labels = context.batch->labels.reshape({-1});
  check(labels.size(0) == x.size(0), "{} labels for {} rows", labels.size(0), x.size(0));
  const at::Tensor targets = at::nonzero(labels.ne(kIgnoredLabel)).reshape({-1});
  const at::Tensor weight = weights_.weight.view();

  LossResult result;
  at::Tensor dx;
  if (gradient) {
    dx = at::zeros_like(x);
    result.grad_inputs = {dx.view(inputs[0].sizes())};
  }
  const int64_t count = targets.size(0);
  const int64_t chunk_rows = std::min(rows_of_chunk(shape_, weight), count);
  const at::Tensor buffer = at::empty({chunk_rows, weight.size(0)}, x.options());
  for (int64_t begin = 0; begin < count; begin += chunk_rows) {
    const at::Tensor chunk = targets.narrow(0, begin, std::min(chunk_rows, count - begin));
    const at::Tensor rows = x.index_select(0, chunk);
    const auto [normed, statistics] = weights_.norm.forward(rows);
    const at::Tensor logits = buffer.narrow(0, 0, chunk.size(0));
    kernels::linear_forward_out(logits, normed, weight);
    const at::Tensor chunk_labels = labels.index_select(0, chunk);
    if (!gradient) {
      result.loss_sum += kernels::cross_entropy_forward(logits, chunk_labels);
      continue;
    }
    result.loss_sum +=
        kernels::cross_entropy_forward_backward_(logits, chunk_labels, context.loss_scale);
    if (weights_.weight.trainable()) {
      const bool store = weights_.weight.grad_is_fresh();
      kernels::linear_backward_weight(logits, normed, weights_.weight.grad(store), {}, store);
    }
    const at::Tensor dnormed = kernels::linear_backward_input(logits, weight);
    const at::Tensor drows = weights_.norm.backward(
        dnormed, rows, statistics, weights_.norm.gain.grad(), weights_.norm.bias.grad());
    dx.index_copy_(0, chunk, drows);
  }
  return result;
}

at::Tensor HeadBlock::logits(const at::Tensor& hidden) const {
  const at::Tensor normed = weights_.norm.forward(as_rows(hidden)).y;
  const at::Tensor logits = kernels::linear_forward(normed, weights_.weight.view());
  return logits.view({hidden.size(0), hidden.size(1), logits.size(1)});
}

double HeadBlock::forward_flops(TensorSpan inputs) const {
  const double numel = static_cast<double>(inputs[0].numel());
  return 2 * numel * static_cast<double>(weights_.weight.rows());
}

std::string HeadBlock::kind() const {
  return "head";
}

} // namespace palimpsest
