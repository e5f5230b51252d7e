#pragma once

// The global norm of a step's gradients, and clipping by it.
//
//   const FoldedNorm norm(2);
//   std::vector<double> parts = norm.measure(shard.gradient);      // of each unit, in order
//   const double total = norm.fold(parts);
//   const double factor = clip_factor(total, 1.0);                 // into UpdateScalars::gradient_factor

#include <palimpsest/core/contracts/optimizer.h>
#include <palimpsest/core/kernels/reduce.h>

#include <string_view>
#include <vector>

namespace palimpsest {

/// (sum |g|^p)^(1/p) for p = 1 and 2, max |g| for p = infinity. One partial result per chunk of
/// 4,096 elements counted from the gradient's start, in double, folded in order: the result does
/// not depend on how a unit is sharded.
class FoldedNorm final : public GradientNorm {
 public:
  /// UserError unless p is 1, 2 or infinity.
  explicit FoldedNorm(double p);
  /// p as `optimizer.norm_type` spells it: "1", "2" or "inf".
  explicit FoldedNorm(std::string_view norm_type);

  std::vector<double> measure(const at::Tensor& gradient) const override;
  double fold(const std::vector<double>& parts) const override;

 private:
  kernels::ChunkReduction reduction_;
};

/// What scales every gradient so that their norm is at most `max_norm`: min(1, max_norm / (norm +
/// 1e-6)), as torch.nn.utils.clip_grad_norm_. Infinity clips nothing. `norm` must be finite,
/// `max_norm` above 0.
double clip_factor(double norm, double max_norm);

} // namespace palimpsest
