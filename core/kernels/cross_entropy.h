#pragma once

// Cross entropy whose logits buffer becomes its own gradient, for a head that works through the
// rows in chunks.
//
//   at::Tensor logits = kernels::linear_forward(hidden_chunk, head);
//   double loss = kernels::cross_entropy_forward_backward_(logits, labels_chunk, 1.0 / targets);
//   // logits now holds d(loss * scale)/d(logits)
//
// Softmax in fp32 with the row's maximum taken out. The sum over rows is folded in row order in
// double, so it does not depend on the thread count. A label that is neither ignore_index nor in
// [0,V) throws InternalError: data checks first.

#include <palimpsest/core/base/labels.h>

#include <ATen/core/Tensor.h>

namespace palimpsest::kernels {

/// Sum over rows of logsumexp(row) - row[label] for logits [C,V] and labels int64 [C]; rows
/// labelled `ignore_index` count as zero. The sum is not scaled. `logits` is overwritten with
/// (softmax - onehot) * scale, zero in ignored rows.
double cross_entropy_forward_backward_(
    const at::Tensor& logits,
    const at::Tensor& labels,
    double scale,
    int64_t ignore_index = kIgnoredLabel);

/// The same sum; logits are left alone.
double cross_entropy_forward(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t ignore_index = kIgnoredLabel);

} // namespace palimpsest::kernels
