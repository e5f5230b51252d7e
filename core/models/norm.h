#pragma once

// A norm of the model: what it computes, and its parameters by unit.
//
//   const Norm norm{.gain = refs[0], .eps = 1e-5};
//   auto [y, statistics] = norm.forward(rows);      // [R,H]
//   at::Tensor dx = norm.backward(dy, rows, statistics, norm.gain.grad());

#include <palimpsest/core/io/decoder_family.h>
#include <palimpsest/core/kernels/norm.h>
#include <palimpsest/core/models/param_ref.h>

#include <ATen/core/Tensor.h>

namespace palimpsest {

struct Norm {
  ParamRef gain; // [H]
  ParamRef bias; // [H], of a layer norm alone
  NormKind kind = NormKind::kRms;
  double eps = 1e-6;

  struct Output {
    at::Tensor y;
    at::Tensor statistics; // fp32: what the backward needs besides x
  };

  bool present() const {
    return gain.present();
  }
  bool trainable() const {
    return gain.trainable() || bias.trainable();
  }
  /// How the gain enters an RMS norm.
  kernels::RmsGain rms_gain() const {
    return kind == NormKind::kRmsOnePlus ? kernels::RmsGain::kOnePlusWeight
                                         : kernels::RmsGain::kWeight;
  }

  Output forward(const at::Tensor& x) const;

  /// The gradient of x, with `add_to` added where it is defined. The parameters' gradients are added
  /// into `grad_gain` and `grad_bias`, fp32 [H], where those are.
  at::Tensor backward(
      const at::Tensor& dy,
      const at::Tensor& x,
      const at::Tensor& statistics,
      const at::Tensor& grad_gain,
      const at::Tensor& grad_bias = {},
      const at::Tensor& add_to = {}) const;
};

} // namespace palimpsest
