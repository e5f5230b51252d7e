#pragma once

// Attention on the CPU in tiles: products in oneDNN's sgemm, softmax in vector code between them.
// Private to core/kernels; attention.h says what is computed. Inputs are fp32 or bf16 with a last
// stride of 1; bf16 tiles are widened to fp32.

#include <palimpsest/core/kernels/attention.h>

namespace palimpsest::kernels {

struct AttentionProblem {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  double scale = 1;
  AttentionMask mask = {};
  AttentionDropout dropout = {};
};

/// Fills output.out and output.logsumexp.
void attention_forward_blocked(const AttentionProblem& problem, const AttentionOutput& output);

/// Fills gradients' three tensors, which have a last stride of 1 and the inputs' dtype.
void attention_backward_blocked(
    const AttentionProblem& problem,
    const at::Tensor& dout,
    const AttentionOutput& output,
    const AttentionGradients& gradients);

} // namespace palimpsest::kernels
