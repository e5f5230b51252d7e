#pragma once

// The end of a decoder: final norm, lm_head and cross entropy, in chunks of rows.
//
//   HeadBlock head({}, {.norm = norm, .weight = weight});      // a tied weight: the embedding's ParamRef
//   LossResult result = head.forward({{hidden}}, /*gradient=*/true, context);
//   at::Tensor logits = head.logits(hidden);      // [B,T,V], for evaluation and generation
//
// The logits of a micro-batch never exist at once: each chunk's become their own gradient and are
// spent on the input's and the weights' gradients before the next chunk. Rows without a target are
// left out of all products.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/models/norm.h>
#include <palimpsest/core/models/param_ref.h>

#include <cstdint>
#include <string>

namespace palimpsest {

struct HeadShape {
  /// Of one chunk's logits. A chunk has at least kMinHeadRows rows, so that a large vocabulary's
  /// weights are not read for a few rows only.
  int64_t chunk_bytes = int64_t{16} << 20;
};

inline constexpr int64_t kMinHeadRows = 128;

struct HeadWeights {
  Norm norm;
  ParamRef weight; // [V,H]
};

class HeadBlock : public TerminalBlock {
 public:
  HeadBlock(HeadShape shape, HeadWeights weights) : shape_(shape), weights_(weights) {}

  /// inputs: hidden [B,T,H]. Reads the micro-batch's labels, int64 [B,T].
  LossResult forward(TensorSpan inputs, bool gradient, const BlockContext& context) override;
  /// As if every row had a target.
  double forward_flops(TensorSpan inputs) const override;
  std::string kind() const override;

  /// hidden [B,T,H] -> [B,T,V] in its dtype, all at once.
  at::Tensor logits(const at::Tensor& hidden) const;

 private:
  HeadShape shape_;
  HeadWeights weights_;
};

} // namespace palimpsest
