#include <palimpsest/core/models/attention_block.h>

#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/core/kernels/norm.h>
#include <palimpsest/core/models/block_support.h>
#include <palimpsest/core/models/weight_jobs.h>

#include <ATen/ops/empty_like.h>

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace palimpsest {
namespace {

enum DropoutCall : uint32_t { kProbabilities, kResidual };

/// The parts of a fused [B,T,heads + 2 kv_heads,D] tensor, as views.
struct Heads {
  Heads(const at::Tensor& qkv, const at::Tensor& x, const AttentionShape& shape)
      : all(qkv.view(
            {x.size(0), x.size(1), shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim})),
        rotated(all.narrow(2, 0, shape.num_heads + shape.num_kv_heads)),
        q(all.narrow(2, 0, shape.num_heads)), k(all.narrow(2, shape.num_heads, shape.num_kv_heads)),
        v(all.narrow(2, shape.num_heads + shape.num_kv_heads, shape.num_kv_heads)) {}
  at::Tensor all;
  at::Tensor rotated; // q and k
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};

kernels::AttentionDropout probability_dropout(
    const AttentionShape& shape,
    const BlockContext& context) {
  const DropoutUse use = dropout_use(shape.attention_dropout, shape.block, kProbabilities, context);
  return {.p = use.p, .key = use.key, .rows = use.rows};
}

double scale_of(const AttentionShape& shape) {
  return 1 / std::sqrt(static_cast<double>(shape.head_dim));
}

} // namespace

class AttentionBlock::AttentionTape : public Tape {
 public:
  AttentionTape(const AttentionBlock& block, bool graded) : block_(block), graded_(graded) {}

  Tensors backward(
      TensorSpan inputs,
      TensorSpan grad_outputs,
      BackwardPart part,
      const BlockContext& context) override;

  std::vector<at::Tensor*> tensors() override {
    std::vector<at::Tensor*> result = jobs_.tensors();
    for (at::Tensor* tensor : {&normed, &rstd, &qkv, &attended, &logsumexp}) {
      if (tensor->defined()) {
        result.push_back(tensor);
      }
    }
    return result;
  }

  at::Tensor normed; // [R,H]; full tapes only
  at::Tensor rstd; // [R]
  at::Tensor qkv; // [R, (heads + 2 kv_heads) * D], rotated
  at::Tensor attended; // [B,T,heads,D]
  at::Tensor logsumexp; // [B,heads,T]

 private:
  at::Tensor qkv_gradient(const at::Tensor& dy, const at::Tensor& x, const BlockContext& context);

  const AttentionBlock& block_;
  bool graded_; // whether the input's gradient is wanted
  WeightJobs jobs_;
};

AttentionBlock::AttentionBlock(
    AttentionShape shape,
    AttentionWeights weights,
    std::shared_ptr<RotaryCache> rotary)
    : shape_(shape), weights_(weights), rotary_(std::move(rotary)) {}

ForwardResult AttentionBlock::forward(
    TensorSpan inputs,
    const ForwardRequest& request,
    const BlockContext& context) {
  const bool wanted = yields(request);
  if (!wanted && request.tape == TapeMode::kNone) {
    return {};
  }
  const at::Tensor& x = inputs[0];
  const at::Tensor rows = as_rows(x);
  auto [normed, rstd] = kernels::rms_norm_forward(rows, weights_.norm.view(), shape_.rms_norm_eps);
  at::Tensor qkv = kernels::linear_forward(normed, weights_.qkv.view(), weights_.qkv_bias.view());
  if (request.tape != TapeMode::kFull) {
    normed.reset();
  }
  kernels::AttentionOutput attention;
  {
    const Heads heads(qkv, x, shape_);
    kernels::rotary_forward_(heads.rotated, rotary_->table(x.size(1)));
    attention = kernels::attention_forward(
        heads.q,
        heads.k,
        heads.v,
        scale_of(shape_),
        {.causal = true},
        probability_dropout(shape_, context));
  }
  ForwardResult result;
  if (request.tape == TapeMode::kNone) {
    qkv.reset();
  } else {
    auto tape = std::make_unique<AttentionTape>(*this, grades(request));
    tape->normed = std::move(normed);
    tape->rstd = std::move(rstd);
    tape->qkv = std::move(qkv);
    tape->attended = attention.out;
    tape->logsumexp = std::move(attention.logsumexp);
    result.tape = std::move(tape);
  }
  if (wanted) {
    result.values = {project_residual(
        attention.out.view({rows.size(0), shape_.num_heads * shape_.head_dim}),
        weights_.output,
        weights_.output_bias,
        x,
        dropout_use(shape_.residual_dropout, shape_.block, kResidual, context))};
  }
  return result;
}

Tensors AttentionBlock::AttentionTape::backward(
    TensorSpan inputs,
    TensorSpan grad_outputs,
    BackwardPart part,
    const BlockContext& context) {
  if (part == BackwardPart::kWeight) {
    jobs_.run();
    return {};
  }
  check(qkv.defined(), "an attention tape is spent twice");
  jobs_.defer(part == BackwardPart::kInput);
  const AttentionWeights& weights = block_.weights_;
  const at::Tensor rows = as_rows(inputs[0]);
  at::Tensor dqkv = qkv_gradient(grad_outputs[0], inputs[0], context);

  if (!normed.defined() && weights.qkv.trainable()) {
    normed = kernels::rms_norm_forward(rows, weights.norm.view(), block_.shape_.rms_norm_eps).y;
  }
  jobs_.linear(dqkv, normed, weights.qkv, weights.qkv_bias);
  normed.reset();
  if (!graded_ && !weights.norm.trainable()) {
    rstd.reset();
    return {at::Tensor()};
  }
  const at::Tensor dnormed = kernels::linear_backward_input(dqkv, weights.qkv.view());
  dqkv.reset();
  const at::Tensor dx = jobs_.rms_norm(
      dnormed, rows, weights.norm, std::exchange(rstd, {}), as_rows(grad_outputs[0]));
  return {graded_ ? dx.view(inputs[0].sizes()) : at::Tensor()};
}

/// Back from the block's output to the gradient of q, k and v before the rotation. Frees what the
/// tape held for it.
at::Tensor AttentionBlock::AttentionTape::qkv_gradient(
    const at::Tensor& dy,
    const at::Tensor& x,
    const BlockContext& context) {
  const AttentionShape& shape = block_.shape_;
  const AttentionWeights& weights = block_.weights_;
  at::Tensor dattended;
  {
    const at::Tensor branch = as_rows(
        branch_gradient(dy, dropout_use(shape.residual_dropout, shape.block, kResidual, context)));
    const int64_t width = shape.num_heads * shape.head_dim;
    jobs_.linear(
        branch, attended.view({branch.size(0), width}), weights.output, weights.output_bias);
    dattended =
        kernels::linear_backward_input(branch, weights.output.view()).view(attended.sizes());
  }
  at::Tensor dqkv = at::empty_like(qkv);
  const Heads gradients(dqkv, x, shape);
  {
    const Heads heads(qkv, x, shape);
    kernels::attention_backward(
        dattended,
        heads.q,
        heads.k,
        heads.v,
        attended,
        logsumexp,
        scale_of(shape),
        {.causal = true},
        probability_dropout(shape, context),
        {.dq = gradients.q, .dk = gradients.k, .dv = gradients.v});
  }
  qkv.reset();
  attended.reset();
  logsumexp.reset();
  kernels::rotary_backward_(gradients.rotated, block_.rotary_->table(x.size(1)));
  return dqkv;
}

double AttentionBlock::forward_flops(TensorSpan inputs) const {
  const at::Tensor& x = inputs[0];
  const double positions = static_cast<double>(x.size(1));
  const double rows = static_cast<double>(x.size(0)) * positions;
  const double q_width = static_cast<double>(shape_.num_heads * shape_.head_dim);
  const double kv_width = static_cast<double>(shape_.num_kv_heads * shape_.head_dim);
  const double products =
      2 * static_cast<double>(shape_.hidden_size) * (2 * q_width + 2 * kv_width);
  const double scores = 2 * q_width * (positions + 1); // scores and weighted sum, half of T keys
  return rows * (products + scores);
}

double AttentionBlock::value_flops(TensorSpan inputs) const {
  const auto rows = static_cast<double>(inputs[0].size(0) * inputs[0].size(1));
  return rows * 2 * static_cast<double>(shape_.hidden_size * shape_.num_heads * shape_.head_dim);
}

std::string AttentionBlock::kind() const {
  return fmt::format(
      "attention {} {}/{}x{}",
      shape_.hidden_size,
      shape_.num_heads,
      shape_.num_kv_heads,
      shape_.head_dim);
}

} // namespace palimpsest
