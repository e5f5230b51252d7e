#include <palimpsest/core/models/embedding_block.h>

#include <palimpsest/core/kernels/embedding.h>
#include <palimpsest/core/models/block_support.h>
#include <palimpsest/core/models/weight_jobs.h>

#include <ATen/ops/arange.h>

#include <utility>

namespace palimpsest {
namespace {

DropoutUse embedding_dropout(const EmbeddingShape& shape, const BlockContext& context) {
  return dropout_use(shape.dropout, shape.block, 0, context);
}

class EmbeddingTape : public Tape {
 public:
  EmbeddingTape(const EmbeddingShape& shape, const EmbeddingWeights& weights)
      : shape_(shape), weights_(weights) {}

  Tensors backward(
      TensorSpan inputs,
      TensorSpan grad_outputs,
      BackwardPart part,
      const BlockContext& context) override {
    if (part == BackwardPart::kWeight) {
      jobs_.run();
      return {};
    }
    jobs_.defer(part == BackwardPart::kInput);
    const at::Tensor& ids = inputs[0];
    const at::Tensor dy =
        as_rows(branch_gradient(grad_outputs[0], embedding_dropout(shape_, context)));
    jobs_.embedding(ids.reshape({-1}), dy, weights_.table, shape_.scale);
    if (weights_.positions.trainable()) {
      const at::Tensor packed = positions_of(context);
      const at::Tensor positions =
          packed.defined() ? packed : at::arange(ids.size(1), ids.options()).expand(ids.sizes());
      jobs_.embedding(positions.reshape({-1}), dy, weights_.positions);
    }
    return {at::Tensor()};
  }

  std::vector<at::Tensor*> tensors() override {
    return jobs_.tensors();
  }

 private:
  EmbeddingShape shape_;
  EmbeddingWeights weights_;
  WeightJobs jobs_;
};

} // namespace

ForwardResult EmbeddingBlock::forward(
    TensorSpan inputs,
    const ForwardRequest& request,
    const BlockContext& context) {
  ForwardResult result;
  if (yields(request)) {
    const at::Tensor& ids = inputs[0];
    const at::Tensor rows =
        kernels::embedding_forward(ids.reshape({-1}), weights_.table.view(), shape_.scale);
    at::Tensor hidden = rows.view({ids.size(0), ids.size(1), rows.size(1)});
    if (weights_.positions.present()) {
      const at::Tensor positions = weights_.positions.view();
      check(
          ids.size(1) <= positions.size(0),
          "{} positions, the model has {}",
          ids.size(1),
          positions.size(0));
      const at::Tensor packed = positions_of(context);
      hidden.add_(
          packed.defined()
              ? kernels::embedding_forward(packed.reshape({-1}), positions).view(hidden.sizes())
              : positions.narrow(0, 0, ids.size(1)));
    }
    const DropoutUse dropout = embedding_dropout(shape_, context);
    result.values = {
        dropout.p == 0 ? hidden
                       : kernels::dropout_forward(hidden, dropout.p, dropout.key, dropout.rows)};
  }
  if (request.tape != TapeMode::kNone) {
    result.tape = std::make_unique<EmbeddingTape>(shape_, weights_);
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
