#pragma once

// Optimizer updates as one pass over flat buffers.
//
//   kernels::AdamWStep step{.learning_rate = 2e-5, .step = 17, .gradient_scale = clip};
//   kernels::adamw_update(master, grad, exp_avg, exp_avg_sq, step, bf16_parameters);
//
// Element-wise with one fixed sequence of operations: the bits do not depend on how buffers are
// sharded or threads split them. Buffers are contiguous and of equal numel: fp32 parameters and
// states, fp32 or bf16 gradients. Zero elements are legal.

#include <ATen/core/Tensor.h>

namespace palimpsest::kernels {

/// One step of AdamW (Loshchilov and Hutter, 2019) as torch.optim.AdamW computes it.
struct AdamWStep {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0; ///< decoupled: parameters shrink by learning_rate * weight_decay
  int64_t step = 1; ///< counted from 1
  double gradient_scale = 1.0; ///< multiplies every gradient: clipping, unscaling
};

/// Updates parameters and both moments in place; `bf16_copy`, where defined, gets the new
/// parameters rounded to bf16.
void adamw_update(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& exp_avg,
    const at::Tensor& exp_avg_sq,
    const AdamWStep& step,
    const at::Tensor& bf16_copy = {});

/// One step of SGD as torch.optim.SGD computes it with dampening 0 and without Nesterov.
struct SgdStep {
  double learning_rate = 1e-3;
  double momentum = 0.0;
  double weight_decay = 0.0; ///< added to the gradient (L2)
  bool first = false; ///< the momentum buffer is set rather than read
  double gradient_scale = 1.0;
};

/// Updates parameters and the momentum buffer in place. `momentum_buffer` may be undefined where
/// momentum is 0.
void sgd_momentum_update(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& momentum_buffer,
    const SgdStep& step,
    const at::Tensor& bf16_copy = {});

} // namespace palimpsest::kernels
