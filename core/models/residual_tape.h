#pragma once

// The backward of a pre-norm residual block, y = x + branch(inner(norm(x))): what comes behind the
// inner layers is the block's own, the way back from there through inner layers and norm is the same
// in all.
//
//   class MlpTape : public ResidualTape {
//     MlpTape(const MlpBlock& block, bool graded)
//         : ResidualTape(block.weights_.norm, block.weights_.inner, graded) {}
//     at::Tensor inner_gradient(dy, x, context) override;      // back through the branch
//     std::vector<at::Tensor*> branch_tensors() override;
//   };

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/models/linear.h>
#include <palimpsest/core/models/norm.h>
#include <palimpsest/core/models/weight_jobs.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace palimpsest {

class ResidualTape : public Tape {
 public:
  /// `graded`: whether the input's gradient is wanted. Norm and layer outlive the tape.
  ResidualTape(const Norm& norm, const Linear& inner, bool graded)
      : norm_(norm), inner_(inner), graded_(graded) {}

  Tensors backward(
      TensorSpan inputs,
      TensorSpan grad_outputs,
      BackwardPart part,
      const BlockContext& context) final;
  std::vector<at::Tensor*> tensors() final;

  at::Tensor normed; // [R,H]; full tapes only, where a gradient needs it
  at::Tensor statistics; // of the norm, [R] or [R,2]

 protected:
  /// Back through the branch: dy and x [B,T,H] to the gradient [R,N] of the inner layers' outputs.
  /// Frees what the tape held for it.
  virtual at::Tensor inner_gradient(
      const at::Tensor& dy,
      const at::Tensor& x,
      const BlockContext& context) = 0;
  /// What inner_gradient needs; some may be undefined.
  virtual std::vector<at::Tensor*> branch_tensors() = 0;

  WeightJobs jobs_;

 private:
  const Norm& norm_;
  const Linear& inner_;
  bool graded_;
};

} // namespace palimpsest
