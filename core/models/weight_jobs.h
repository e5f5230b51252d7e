#pragma once

// The weight gradients of a hand-written backward: done at once, or queued for a later part of the
// plan.
//
//   jobs.defer(part == BackwardPart::kInput);
//   jobs.linear(dy, x, weight, bias);       // grad(weight) += dy^T x now, or in run()
//   ...
//   jobs.run();
//
// Both ways make the same calls in the same order, so they give the same bits. What is queued is
// owned here (about as much as the block's full tape); frozen parameters queue and cost nothing.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/models/dropout_use.h>
#include <palimpsest/core/models/linear.h>
#include <palimpsest/core/models/norm.h>
#include <palimpsest/core/models/param_ref.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace palimpsest {

class WeightJobs {
 public:
  void defer(bool deferred) {
    deferred_ = deferred;
  }

  /// Of y = x w^T + b: dy [R,N], x [R,K]. Where only the bias is trained, only its sum is done.
  void linear(
      const at::Tensor& dy,
      const at::Tensor& x,
      const ParamRef& weight,
      const ParamRef& bias = {});

  /// The same, and of the layer's adapters: what is as wide as their rank is made now, while their
  /// parameters are there.
  void linear(
      const at::Tensor& dy,
      const at::Tensor& x,
      const Linear& layer,
      const BlockContext& context);

  /// Of rows looked up by ids [R] and multiplied by `scale`: dy [R,H].
  void embedding(
      const at::Tensor& ids,
      const at::Tensor& dy,
      const ParamRef& table,
      double scale = 1);

  /// The input gradient [R,H] of a norm, with `add_to` (the gradient over the residual branch, may
  /// be undefined) added; the parameters' gradients are jobs.
  at::Tensor norm(
      const at::Tensor& dy,
      const at::Tensor& x,
      const Norm& norm,
      const at::Tensor& statistics,
      const at::Tensor& add_to);

  /// Of an RMS norm of heads: dy [R,heads,D] becomes the gradient of x, in place.
  void head_norm(
      const at::Tensor& dy,
      const at::Tensor& x,
      const Norm& norm,
      const at::Tensor& rstd);

  /// Adds a finished gradient to a parameter's buffer.
  void add(const at::Tensor& gradient, const ParamRef& parameter);

  /// Does what is queued and frees it.
  void run();

  /// What the queue owns.
  std::vector<at::Tensor*> tensors();

 private:
  enum class Kind { kLinear, kEmbedding, kAdd };
  struct Job {
    Kind kind = Kind::kAdd;
    at::Tensor gradient = {};
    at::Tensor operand = {}; // x or ids
    ParamRef parameter = {};
    ParamRef bias = {};
    double scale = 1;
    DropoutUse dropout = {}; // of the operand
  };
  void submit(Job job);
  static void execute(const Job& job);

  bool deferred_ = false;
  std::vector<Job> jobs_;
};

} // namespace palimpsest
