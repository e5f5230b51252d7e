#pragma once

// Optimizer updates as one pass over flat buffers.
//
//   kernels::AdamWStep step{.learning_rate = 2e-5, .step = 17, .gradient_scale = clip};
//   kernels::adamw_update(master, grad, exp_avg, exp_avg_sq, step, bf16_parameters);
//
// Element-wise with one fixed sequence of operations in fp32: the bits do not depend on how buffers
// are sharded or threads split them. Buffers are contiguous and of equal numel, each fp32 or bf16.
// Zero elements are legal.
//
// bf16 parameters and moments are rounded stochastically as they are stored: to one of the two
// neighbours, in expectation exactly. To the nearest, what changes a number by less than 1 / 512 of
// it would be lost each time: small updates, and every step of a mean with beta2 = 0.999.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace palimpsest::kernels {

/// What the random words of stochastic rounding depend on, besides the step and the buffer: so they
/// are the same in every layout.
struct StochasticRounding {
  uint64_t seed = 0; ///< of the run
  uint32_t unit = 0; ///< the parameters' unit
  int64_t first = 0; ///< number of the buffers' first element in it; below 2^34
};

/// One step of AdamW (Loshchilov and Hutter, 2019) as torch.optim.AdamW computes it.
struct AdamWStep {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0; ///< decoupled: parameters shrink by learning_rate * weight_decay
  int64_t step = 1; ///< counted from 1
  double gradient_scale = 1.0; ///< multiplies every gradient: clipping, unscaling
  StochasticRounding rounding = {};
};

/// Updates parameters and both moments in place; `copy` (bf16 or fp16), where defined, gets the new
/// parameters rounded to nearest.
void adamw_update(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& exp_avg,
    const at::Tensor& exp_avg_sq,
    const AdamWStep& step,
    const at::Tensor& copy = {});

/// One step of SGD as torch.optim.SGD computes it with dampening 0 and without Nesterov.
struct SgdStep {
  double learning_rate = 1e-3;
  double momentum = 0.0;
  double weight_decay = 0.0; ///< added to the gradient (L2)
  bool first = false; ///< the momentum buffer is set rather than read
  int64_t step = 1; ///< counted from 1; only stochastic rounding depends on it
  double gradient_scale = 1.0;
  StochasticRounding rounding = {};
};

/// Updates parameters and the momentum buffer in place. `momentum_buffer` may be undefined where
/// momentum is 0.
void sgd_momentum_update(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& momentum_buffer,
    const SgdStep& step,
    const at::Tensor& copy = {});

} // namespace palimpsest::kernels
