#pragma once

// Token ids to hidden states: the first block of a decoder.
//
//   EmbeddingBlock block(table);      // table [V,H]
//   Tensors hidden = block.forward({{ids}}, {TapeMode::kFull, {0}}, context).values;      // [B,T] -> [B,T,H]
//
// Reads the micro-batch's ids, which its backward needs again: a tape owns nothing. Ids outside
// [0,V) are an InternalError.

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/models/param_ref.h>

namespace palimpsest {

class EmbeddingBlock : public Block {
 public:
  explicit EmbeddingBlock(ParamRef table) : table_(table) {}

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) override;
  double forward_flops(TensorSpan inputs) const override;
  std::string kind() const override;

 private:
  ParamRef table_;
};

} // namespace palimpsest
