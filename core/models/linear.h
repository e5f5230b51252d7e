#pragma once

// A linear layer of a block: a product with one weight or with neighbours in a unit (q, k and v), and
// the low-rank adapters of their outputs. Where some of the neighbours are frozen and others trained
// they are several products, whose outputs lie side by side.
//
//   const Linear qkv{.products = {{.weight = refs[0], .bias = refs[1]}},
//                    .adapters = {{.a = refs[2], .b = refs[3], .scale = 2}}};
//   at::Tensor y = qkv.forward(x, context);           // x [R,K] -> [R,N]
//   at::Tensor dx = qkv.backward_input(dy, context);
//   jobs.linear(dy, x, qkv, context);                 // weight_jobs.h: the parameters' gradients
//
// An adapter (LoRA, Hu et al. 2021) adds scale * (dropout(x) A^T) B^T to its outputs. What is as wide
// as its rank is computed anew in the backward, so it keeps nothing but the layer's own x.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/models/dropout_use.h>
#include <palimpsest/core/models/param_ref.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest {

struct Adapter {
  ParamRef a; // [r,K]
  ParamRef b; // [n,r]
  int64_t first = 0; // of the layer's outputs, those that it adds to: [first, first + n)
  double scale = 1;
  double dropout = 0;
  uint32_t block = 0; // the block's number, for its randomness
  uint32_t call = 0;

  bool trainable() const {
    return a.trainable() || b.trainable();
  }
  /// Of x in this micro-batch; off outside training.
  DropoutUse dropout_use(const BlockContext& context) const;

  /// Adds to y [R,N].
  void forward(const at::Tensor& y, const at::Tensor& x, const DropoutUse& use) const;
  /// Adds to dx [R,K] what comes back from dy [R,N].
  void backward_input(const at::Tensor& dx, const at::Tensor& dy, const DropoutUse& use) const;

  /// Its outputs in y [R,N], a view [R,n].
  at::Tensor outputs(const at::Tensor& y) const;
  /// scale * dropout(x) A^T [R,r]: what B is multiplied with.
  at::Tensor narrowed(const at::Tensor& x, const DropoutUse& use) const;
  /// scale * dy B [R,r]: the gradient of dropout(x) A^T.
  at::Tensor narrowed_gradient(const at::Tensor& dy) const;
};

/// x [R,K] with its dropout, [B*T,K] counted as sequences [B,T,K]; x itself where it is off.
at::Tensor dropped(const at::Tensor& x, const DropoutUse& use);

struct Product {
  ParamRef weight; // [n,K]
  ParamRef bias; // [n], may be absent
  int64_t first = 0; // of the layer's outputs, those that it gives: [first, first + n)

  /// Its outputs in y [R,N], a view [R,n].
  at::Tensor outputs(const at::Tensor& y) const;
};

struct Linear {
  std::vector<Product> products; // at least one; N outputs together
  std::vector<Adapter> adapters; // may be none

  /// Whether the gradients of its parameters need x.
  bool backward_reads_input() const;

  /// y [R,N] = x w^T + b, plus `residual` [R,N] where defined, plus what adapters add.
  at::Tensor forward(
      const at::Tensor& x,
      const BlockContext& context,
      const at::Tensor& residual = {}) const;

  /// The gradient of x.
  at::Tensor backward_input(const at::Tensor& dy, const BlockContext& context) const;

  /// Operations of one forward of so many rows, what adapters add included; and of one backward:
  /// the products again for x's gradient, and once more for each weight that is trained.
  double forward_flops(double rows) const;
  double backward_flops(double rows) const;
  /// What tells layers of equal weights apart that cost differently: "", or " +4@0 +4@64".
  std::string kind() const;
};

} // namespace palimpsest
