#pragma once

// Token ids to hidden states: the first block of a decoder.
//
//   EmbeddingBlock block({}, {.table = table});      // table [V,H]
//   Tensors hidden = block.forward({{ids}}, {TapeMode::kFull, {0}}, context).values;      // [B,T] -> [B,T,H]
//
// dropout(scale * table[id] + positions[t]). Reads the micro-batch's ids, which its backward needs
// again: a tape owns nothing. Ids outside [0,V), or more positions than there are rows for them, are
// an InternalError.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/models/param_ref.h>

#include <cstdint>

namespace palimpsest {

struct EmbeddingShape {
  double scale = 1;
  double dropout = 0;
  uint32_t block = 0; // the block's number, for its randomness
};

struct EmbeddingWeights {
  ParamRef table; // [V,H]
  ParamRef positions; // [P,H]; absent where positions are not learned
};

class EmbeddingBlock : public Block {
 public:
  EmbeddingBlock(EmbeddingShape shape, EmbeddingWeights weights)
      : shape_(shape), weights_(weights) {}

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) override;
  double forward_flops(TensorSpan inputs) const override;
  std::string kind() const override;

 private:
  EmbeddingShape shape_;
  EmbeddingWeights weights_;
};

} // namespace palimpsest
