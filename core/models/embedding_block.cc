#include <palimpsest/core/models/embedding_block.h>

#include <palimpsest/core/kernels/embedding.h>
#include <palimpsest/core/models/block_support.h>
#include <palimpsest/core/models/weight_jobs.h>

#include <utility>

namespace palimpsest {
namespace {

class EmbeddingTape : public Tape {
 public:
  explicit EmbeddingTape(ParamRef table) : table_(table) {}

  Tensors backward(
      TensorSpan inputs,
      TensorSpan grad_outputs,
      BackwardPart part,
      const BlockContext& /*context*/) override {
    if (part == BackwardPart::kWeight) {
      jobs_.run();
      return {};
    }
    jobs_.defer(part == BackwardPart::kInput);
    jobs_.embedding(inputs[0].reshape({-1}), as_rows(grad_outputs[0]), table_);
    return {at::Tensor()};
  }

  std::vector<at::Tensor*> tensors() override {
    return jobs_.tensors();
  }

 private:
  ParamRef table_;
  WeightJobs jobs_;
};

} // namespace

ForwardResult EmbeddingBlock::forward(
    TensorSpan inputs,
    const ForwardRequest& request,
    const BlockContext& /*context*/) {
  ForwardResult result;
  if (yields(request)) {
    const at::Tensor& ids = inputs[0];
    const at::Tensor rows = kernels::embedding_forward(ids.reshape({-1}), table_.view());
    result.values = {rows.view({ids.size(0), ids.size(1), rows.size(1)})};
  }
  if (request.tape != TapeMode::kNone) {
    result.tape = std::make_unique<EmbeddingTape>(table_);
  }
  return result;
}

double EmbeddingBlock::forward_flops(TensorSpan /*inputs*/) const {
  return 0; // a copy of rows
}

std::string EmbeddingBlock::kind() const {
  return "embedding";
}

} // namespace palimpsest
