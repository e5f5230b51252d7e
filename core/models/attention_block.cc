#include <palimpsest/core/models/attention_block.h>

#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/models/block_support.h>
#include <palimpsest/core/models/residual_tape.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace palimpsest {
namespace {

enum DropoutCall : uint32_t { kProbabilities, kResidual };

/// q, k and v as views [B,T,heads,D]. q and k lie in the rows of `qk`: before v in those of `qkv`, or
/// apart.
struct Heads {
  Heads(
      const at::Tensor& qk,
      const at::Tensor& qkv,
      const at::Tensor& x,
      const AttentionShape& shape) {
    const auto part = [&](const at::Tensor& rows, int64_t first, int64_t count) {
      const int64_t heads = rows.size(-1) / shape.head_dim; // not -1: there may be no rows
      return rows.view({x.size(0), x.size(1), heads, shape.head_dim}).narrow(2, first, count);
    };
    const int64_t both = shape.num_heads + shape.num_kv_heads;
    rotated = part(qk, 0, both);
    q = part(qk, 0, shape.num_heads);
    k = part(qk, shape.num_heads, shape.num_kv_heads);
    v = part(qkv, both, shape.num_kv_heads);
  }
  at::Tensor rotated; // q and k
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};

/// [B,T,heads,D] as the view [B*T,heads,D] that a norm of heads takes.
at::Tensor rows_of(const at::Tensor& heads) {
  return heads.flatten(0, 1);
}

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

/// What the norms of heads make of q and k.
struct AttentionBlock::Turned {
  at::Tensor qk; // [R, (heads + kv_heads) * D], rotated
  at::Tensor q_rstd; // [R * heads]
  at::Tensor k_rstd; // [R * kv_heads]
};

class AttentionBlock::AttentionTape : public ResidualTape {
 public:
  AttentionTape(const AttentionBlock& block, bool graded)
      : ResidualTape(block.weights_.norm, block.weights_.qkv, graded), block_(block) {}

  at::Tensor qkv; // [R, (heads + 2 kv_heads) * D], rotated unless heads are normed
  Turned turned; // full tapes only
  at::Tensor attended; // [B,T,heads,D]
  at::Tensor logsumexp; // [B,heads,T]

 private:
  at::Tensor inner_gradient(const at::Tensor& dy, const at::Tensor& x, const BlockContext& context)
      override;
  at::Tensor attended_gradient(const at::Tensor& dy, const BlockContext& context);
  std::vector<at::Tensor*> branch_tensors() override {
    return {&qkv, &turned.qk, &turned.q_rstd, &turned.k_rstd, &attended, &logsumexp};
  }

  const AttentionBlock& block_;
};

AttentionBlock::AttentionBlock(
    AttentionShape shape,
    AttentionWeights weights,
    std::shared_ptr<RotaryCache> rotary)
    : shape_(shape), weights_(std::move(weights)), rotary_(std::move(rotary)) {}

/// Norms each head of q and k, where the model does, and rotates. Without norms they are rotated in
/// their place and the result is empty.
AttentionBlock::Turned AttentionBlock::turn(
    const at::Tensor& qkv,
    const at::Tensor& x,
    const BlockContext& context) const {
  return turn(
      qkv, x, rotary_ == nullptr ? nullptr : &rotary_->table(x.size(1)), positions_of(context));
}

AttentionBlock::Turned AttentionBlock::turn(
    const at::Tensor& qkv,
    const at::Tensor& x,
    const kernels::RotaryTable* table,
    const at::Tensor& positions) const {
  Turned turned;
  if (weights_.q_norm.present()) {
    turned.qk = at::empty(
        {qkv.size(0), (shape_.num_heads + shape_.num_kv_heads) * shape_.head_dim}, qkv.options());
    const Heads from(qkv, qkv, x, shape_);
    const Heads to(turned.qk, qkv, x, shape_);
    const auto norm = [](const at::Tensor& y, const at::Tensor& heads, const Norm& by) {
      return kernels::rms_norm_forward_out(
          rows_of(y), rows_of(heads), by.gain.view(), by.eps, by.rms_gain());
    };
    turned.q_rstd = norm(to.q, from.q, weights_.q_norm);
    turned.k_rstd = norm(to.k, from.k, weights_.k_norm);
  }
  if (table != nullptr) {
    const at::Tensor& qk = turned.qk.defined() ? turned.qk : qkv;
    kernels::rotary_forward_(Heads(qk, qkv, x, shape_).rotated, *table, positions);
  }
  return turned;
}

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
  auto [normed, statistics] = weights_.norm.forward(rows);
  at::Tensor qkv = weights_.qkv.forward(normed, context);
  if (request.tape != TapeMode::kFull || !weights_.qkv.backward_reads_input()) {
    normed.reset();
  }
  Turned turned = turn(qkv, x, context);
  kernels::AttentionOutput attention;
  {
    const Heads heads(turned.qk.defined() ? turned.qk : qkv, qkv, x, shape_);
    attention = kernels::attention_forward(
        heads.q,
        heads.k,
        heads.v,
        scale_of(shape_),
        mask(context),
        probability_dropout(shape_, context));
  }
  if (request.tape != TapeMode::kFull) {
    turned = {};
  }
  ForwardResult result;
  if (request.tape == TapeMode::kNone) {
    qkv.reset();
  } else {
    auto tape = std::make_unique<AttentionTape>(*this, grades(request));
    tape->normed = std::move(normed);
    tape->statistics = std::move(statistics);
    tape->qkv = std::move(qkv);
    tape->turned = std::move(turned);
    tape->attended = attention.out;
    tape->logsumexp = std::move(attention.logsumexp);
    result.tape = std::move(tape);
  }
  if (wanted) {
    result.values = {project_residual(
        attention.out.view({rows.size(0), shape_.num_heads * shape_.head_dim}),
        weights_.output,
        x,
        dropout_use(shape_.residual_dropout, shape_.block, kResidual, context),
        context)};
  }
  return result;
}

/// Back through the output projection.
at::Tensor AttentionBlock::AttentionTape::attended_gradient(
    const at::Tensor& dy,
    const BlockContext& context) {
  const AttentionShape& shape = block_.shape_;
  const AttentionWeights& weights = block_.weights_;
  const at::Tensor branch = as_rows(
      branch_gradient(dy, dropout_use(shape.residual_dropout, shape.block, kResidual, context)));
  const int64_t width = shape.num_heads * shape.head_dim;
  jobs_.linear(branch, attended.view({branch.size(0), width}), weights.output, context);
  return weights.output.backward_input(branch, context).view(attended.sizes());
}

/// Of q, k and v before norms and rotation.
at::Tensor AttentionBlock::AttentionTape::inner_gradient(
    const at::Tensor& dy,
    const at::Tensor& x,
    const BlockContext& context) {
  const AttentionShape& shape = block_.shape_;
  const AttentionWeights& weights = block_.weights_;
  const at::Tensor dattended = attended_gradient(dy, context);
  if (weights.q_norm.present() && !turned.qk.defined()) {
    turned = block_.turn(qkv, x, context);
  }
  at::Tensor dqkv = at::empty_like(qkv);
  const Heads gradients(dqkv, dqkv, x, shape);
  {
    const Heads heads(turned.qk.defined() ? turned.qk : qkv, qkv, x, shape);
    kernels::attention_backward(
        dattended,
        heads.q,
        heads.k,
        heads.v,
        attended,
        logsumexp,
        scale_of(shape),
        block_.mask(context),
        probability_dropout(shape, context),
        {.dq = gradients.q, .dk = gradients.k, .dv = gradients.v});
  }
  attended.reset();
  logsumexp.reset();
  if (block_.rotary_ != nullptr) {
    kernels::rotary_backward_(
        gradients.rotated, block_.rotary_->table(x.size(1)), positions_of(context));
  }
  if (weights.q_norm.present()) {
    const Heads before(qkv, qkv, x, shape);
    jobs_.head_norm(rows_of(gradients.q), rows_of(before.q), weights.q_norm, turned.q_rstd);
    jobs_.head_norm(rows_of(gradients.k), rows_of(before.k), weights.k_norm, turned.k_rstd);
    turned = {};
  }
  qkv.reset();
  return dqkv;
}

CacheShape AttentionBlock::cache_shape(at::ScalarType dtype, int64_t most) const {
  return {
      .kv_heads = shape_.num_kv_heads,
      .head_dim = shape_.head_dim,
      .window = shape_.window,
      .dtype = dtype,
      .most = most};
}

at::Tensor AttentionBlock::extend(const at::Tensor& x, CacheStep& step, const BlockContext& context)
    const {
  const at::Tensor rows = as_rows(x);
  const at::Tensor in_a_row = rows.unsqueeze(0); // [1,R,H]
  const int64_t sequences = std::ssize(step.caches);
  const int64_t tokens = rows.size(0) / sequences; // of each
  check(sequences == 1 || tokens == 1, "{} sequences of {} new tokens", sequences, tokens);
  if (rotary_ != nullptr && !step.rotary) {
    step.rotary = rotary_->rows(step.places);
  }
  const at::Tensor qkv = weights_.qkv.forward(weights_.norm.forward(rows).y, context);
  const Turned turned = turn(qkv, in_a_row, step.rotary ? &*step.rotary : nullptr, {});
  const Heads heads(turned.qk.defined() ? turned.qk : qkv, qkv, in_a_row, shape_);
  std::vector<kernels::KeysAndValues> seen;
  for (int64_t i = 0; i < sequences; ++i) {
    LayerCache& cache = *step.caches[static_cast<size_t>(i)];
    cache.append(
        heads.k[0].narrow(0, i * tokens, tokens), heads.v[0].narrow(0, i * tokens, tokens));
    seen.push_back(cache.seen(tokens));
  }
  const at::Tensor attended = tokens == 1
      ? kernels::decode_attention(heads.q[0], seen, scale_of(shape_))
      : kernels::attention_forward(
            heads.q,
            seen[0].k.unsqueeze(0),
            seen[0].v.unsqueeze(0),
            scale_of(shape_),
            {.causal = true, .window = shape_.window})
            .out;
  return project_residual(
      attended.view({rows.size(0), shape_.num_heads * shape_.head_dim}),
      weights_.output,
      x,
      {},
      context);
}

/// Of the scores and the weighted sum.
double AttentionBlock::score_flops(const at::Tensor& x) const {
  const int64_t pairs = x.size(0) * kernels::causal_pairs(x.size(1), shape_.window);
  return 4 * static_cast<double>(shape_.num_heads * shape_.head_dim) * static_cast<double>(pairs);
}

double AttentionBlock::forward_flops(TensorSpan inputs) const {
  const double rows = row_count(inputs[0]);
  return weights_.qkv.forward_flops(rows) + weights_.output.forward_flops(rows) +
      score_flops(inputs[0]);
}

double AttentionBlock::value_flops(TensorSpan inputs) const {
  return weights_.output.forward_flops(row_count(inputs[0]));
}

double AttentionBlock::backward_flops(TensorSpan inputs) const {
  const double rows = row_count(inputs[0]);
  return weights_.qkv.backward_flops(rows) + weights_.output.backward_flops(rows) +
      2 * score_flops(inputs[0]);
}

std::string AttentionBlock::kind() const {
  return fmt::format(
      "attention {} {}/{}x{}{}{}{}",
      shape_.hidden_size,
      shape_.num_heads,
      shape_.num_kv_heads,
      shape_.head_dim,
      shape_.window == 0 ? "" : fmt::format(" window {}", shape_.window),
      weights_.qkv.kind(),
      weights_.output.kind());
}

} // namespace palimpsest
