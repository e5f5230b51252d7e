#pragma once

// Rotary position embedding (Su et al., 2021) in the half-split convention of Hugging Face: feature
// i turns with feature i + D/2.
//
//   kernels::RotaryTable table(inverse_frequencies, /*attention_scaling=*/1.0F, /*length=*/2048);
//   kernels::rotary_forward_(q, table);      // q [B,T,heads,D], often a view of a fused tensor
//   kernels::rotary_backward_(dq, table);    // the inverse rotation, scaling kept
//
// The rotation is computed in fp32 and rounded once.

#include <ATen/core/Tensor.h>

#include <span>
#include <utility>

namespace palimpsest::kernels {

/// Cosines and sines of position * frequency, each times the attention scaling (that of yarn;
/// otherwise 1). As Hugging Face computes them: the angle in fp32.
class RotaryTable {
 public:
  /// `inverse_frequencies` has D/2 entries; positions 0 .. length-1. The table lives on the CPU.
  RotaryTable(std::span<const float> inverse_frequencies, float attention_scaling, int64_t length);
  /// Of other rows than the positions from 0 on: cosines and sines as they are, fp32 [rows, D/2].
  RotaryTable(at::Tensor cos, at::Tensor sin) : cos_(std::move(cos)), sin_(std::move(sin)) {}

  const at::Tensor& cos() const { ///< fp32 [length, D/2]
    return cos_;
  }
  const at::Tensor& sin() const { ///< fp32 [length, D/2]
    return sin_;
  }

 private:
  at::Tensor cos_;
  at::Tensor sin_;
};

/// Rotates x [B,T,heads,D] in place. x may be a view with any strides but 1 in the last dimension.
/// `positions` int64 [B,T] on the CPU; undefined means 0 .. T-1 in each row. A position outside the
/// table throws InternalError.
void rotary_forward_(
    const at::Tensor& x,
    const RotaryTable& table,
    const at::Tensor& positions = {});

/// The gradient of rotary_forward_, in place: the transposed rotation.
void rotary_backward_(
    const at::Tensor& dx,
    const RotaryTable& table,
    const at::Tensor& positions = {});

} // namespace palimpsest::kernels
