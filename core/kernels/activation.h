#pragma once

// Activations, plain and gated.
//
//   const auto silu = kernels::Activation::kSilu;                // SwiGLU (Shazeer, 2020)
//   at::Tensor h = kernels::glu_forward(gate_up, silu);
//   at::Tensor d = kernels::glu_backward(dh, gate_up, silu, h);  // and h again, in the same pass
//
// Computed in fp32, rounded once; fp32 and bf16 fused on the CPU, ATen elsewhere.

#include <ATen/core/Tensor.h>

namespace palimpsest::kernels {

enum class Activation {
  kSilu,
  kGeluTanh, ///< gelu_new, gelu_pytorch_tanh
  kGeluErf, ///< gelu
  kRelu,
  kTanh,
};

/// activation(x), any shape.
at::Tensor activation_forward(const at::Tensor& x, Activation activation);

/// dx = dy * activation'(x), from the activation's input. `dx` may be `dy`.
void activation_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    Activation activation,
    at::Tensor dx);

/// activation(gate) * up of gate_up [R,2I], gate in the first half of a row -> [R,I].
at::Tensor glu_forward(const at::Tensor& gate_up, Activation activation);

/// The gradient of gate_up [R,2I] from doutput [R,I]. `output` [R,I], where defined, is overwritten
/// with glu_forward's result, which a lean tape does not keep.
at::Tensor glu_backward(
    const at::Tensor& doutput,
    const at::Tensor& gate_up,
    Activation activation,
    const at::Tensor& output = {});

} // namespace palimpsest::kernels
