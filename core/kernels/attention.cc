#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/kernels/attention_blocked.h>
#include <palimpsest/core/kernels/dispatch.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <limits>

namespace palimpsest::kernels {

namespace {

void check_problem(const AttentionProblem& p) {
  check(
      p.q.dim() == 4 && p.k.dim() == 4 && p.k.sizes() == p.v.sizes() &&
          p.q.size(0) == p.k.size(0) && p.q.size(3) == p.k.size(3) && p.k.size(2) > 0 &&
          p.q.size(2) % p.k.size(2) == 0 && p.q.scalar_type() == p.k.scalar_type() &&
          p.q.scalar_type() == p.v.scalar_type(),
      "attention: q, k and v of {}, {} and {} elements do not fit each other",
      p.q.numel(),
      p.k.numel(),
      p.v.numel());
  check(
      p.k.size(1) > 0 && (!p.mask.causal || p.q.size(1) <= p.k.size(1)),
      "attention: {} queries and {} keys{}",
      p.q.size(1),
      p.k.size(1),
      p.mask.causal ? " under a causal mask" : "");
  check(
      p.mask.window >= 0 && (p.mask.causal || p.mask.window == 0),
      "attention: a window of {}{}",
      p.mask.window,
      p.mask.causal ? "" : " without a causal mask");
  check(
      !p.mask.positions.defined() ||
          (p.mask.causal && p.mask.positions.is_cpu() && p.mask.positions.is_contiguous() &&
           p.mask.positions.scalar_type() == at::kLong && p.mask.positions.dim() == 2 &&
           p.mask.positions.size(0) == p.q.size(0) && p.mask.positions.size(1) == p.q.size(1) &&
           p.q.size(1) == p.k.size(1)),
      "attention: documents need a causal mask and contiguous int64 positions [{}, {}] on the CPU",
      p.q.size(0),
      p.q.size(1));
  check(p.scale > 0, "attention: scale {} is not positive", p.scale);
  check(
      p.dropout.p == 0 ||
          (p.dropout.rows.defined() && p.dropout.rows.is_cpu() && p.dropout.rows.is_contiguous() &&
           p.dropout.rows.scalar_type() == at::kLong && p.dropout.rows.numel() == p.q.size(0)),
      "attention: dropout needs contiguous int64 rows [{}] on the CPU",
      p.q.size(0));
}

bool is_blocked_operand(const at::Tensor& tensor) {
  return tensor.is_cpu() && is_fast_dtype(tensor.scalar_type()) && tensor.stride(3) == 1;
}

bool is_blocked(const AttentionProblem& p) {
  return is_blocked_operand(p.q) && is_blocked_operand(p.k) && is_blocked_operand(p.v);
}

// One head of one sequence, materialised in the wide dtype: what any device can compute.
struct MaterialisedHead {
  at::Tensor q; // [T,D]
  at::Tensor k; // [S,D]
  at::Tensor v; // [S,D]
  at::Tensor scores; // [T,S], scaled and masked
  at::Tensor factors; // dropout's, or undefined
};

at::ScalarType wide_dtype(const at::Tensor& tensor) {
  return c10::promoteTypes(tensor.scalar_type(), at::kFloat);
}

at::Tensor head_of(const at::Tensor& tensor, int64_t b, int64_t h) {
  return tensor.select(0, b).select(1, h).to(wide_dtype(tensor));
}

MaterialisedHead materialise(const AttentionProblem& p, int64_t b, int64_t h) {
  const int64_t kv_head = h / (p.q.size(2) / p.k.size(2));
  MaterialisedHead head{
      head_of(p.q, b, h), head_of(p.k, b, kv_head), head_of(p.v, b, kv_head), {}, {}};
  head.scores = at::matmul(head.q, head.k.t()) * p.scale;
  if (p.mask.causal) {
    const at::Tensor all = at::ones({p.q.size(1), p.k.size(1)}, p.q.options().dtype(at::kBool));
    const int64_t first = p.k.size(1) - p.q.size(1); // the first query's own key
    at::Tensor hidden = all.triu(first + 1);
    if (p.mask.window > 0) {
      hidden = hidden.logical_or(all.tril(first - p.mask.window));
    }
    if (p.mask.positions.defined()) {
      const at::Tensor places = at::arange(p.q.size(1), at::kLong);
      const at::Tensor starts = places - p.mask.positions.select(0, b);
      hidden = hidden.logical_or((places < starts.unsqueeze(1)).to(p.q.device()));
    }
    head.scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  }
  if (p.dropout.p > 0) {
    const at::Tensor factors = at::empty({p.q.size(1), p.k.size(1)}, at::kFloat);
    attention_dropout_factors(
        factors.data_ptr<float>(),
        {.row = p.dropout.rows.const_data_ptr<int64_t>()[b],
         .head = h,
         .queries = p.q.size(1),
         .keys = p.k.size(1)},
        p.dropout.p,
        p.dropout.key);
    head.factors = factors.to(p.q.device(), head.scores.scalar_type());
  }
  return head;
}

void forward_materialised(const AttentionProblem& p, const AttentionOutput& output) {
  for (int64_t b = 0; b < p.q.size(0); ++b) {
    for (int64_t h = 0; h < p.q.size(2); ++h) {
      const MaterialisedHead head = materialise(p, b, h);
      const at::Tensor logsumexp = at::logsumexp(head.scores, {1});
      at::Tensor weights = (head.scores - logsumexp.unsqueeze(1)).exp();
      if (head.factors.defined()) {
        weights = weights * head.factors;
      }
      output.out.select(0, b).select(1, h).copy_(at::matmul(weights, head.v));
      output.logsumexp.select(0, b).select(0, h).copy_(logsumexp);
    }
  }
}

void backward_materialised(
    const AttentionProblem& p,
    const at::Tensor& dout,
    const AttentionOutput& output,
    const AttentionGradients& gradients) {
  const int64_t group = p.q.size(2) / p.k.size(2);
  for (int64_t b = 0; b < p.q.size(0); ++b) {
    for (int64_t kv_head = 0; kv_head < p.k.size(2); ++kv_head) {
      at::Tensor dk;
      at::Tensor dv;
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const MaterialisedHead head = materialise(p, b, h);
        const at::Tensor upstream = head_of(dout, b, h);
        const at::Tensor logsumexp = output.logsumexp.select(0, b).select(0, h).unsqueeze(1);
        const at::Tensor weights = (head.scores - logsumexp).exp();
        at::Tensor used = weights;
        at::Tensor dweights = at::matmul(upstream, head.v.t());
        if (head.factors.defined()) {
          used = weights * head.factors;
          dweights = dweights * head.factors;
        }
        const at::Tensor delta = (upstream * head_of(output.out, b, h)).sum({1}, true);
        const at::Tensor dscores = weights * (dweights - delta) * p.scale;
        gradients.dq.select(0, b).select(1, h).copy_(at::matmul(dscores, head.k));
        const at::Tensor dk_part = at::matmul(dscores.t(), head.q);
        const at::Tensor dv_part = at::matmul(used.t(), upstream);
        dk = dk.defined() ? dk + dk_part : dk_part;
        dv = dv.defined() ? dv + dv_part : dv_part;
      }
      gradients.dk.select(0, b).select(1, kv_head).copy_(dk);
      gradients.dv.select(0, b).select(1, kv_head).copy_(dv);
    }
  }
}

at::Tensor result_like(const at::Tensor& given, const at::Tensor& input, const char* name) {
  if (!given.defined()) {
    return at::empty(input.sizes(), input.options());
  }
  check(
      given.sizes() == input.sizes() && given.scalar_type() == input.scalar_type(),
      "attention_backward: {} has {} elements, its input {}",
      name,
      given.numel(),
      input.numel());
  return given;
}

} // namespace

int64_t causal_pairs(int64_t length, int64_t window) {
  if (window == 0 || window >= length) {
    return length * (length + 1) / 2;
  }
  return window * (window + 1) / 2 + (length - window) * window;
}

AttentionOutput attention_forward(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double scale,
    const AttentionMask& mask,
    const AttentionDropout& dropout) {
  const AttentionProblem problem{q, k, v, scale, mask, dropout};
  check_problem(problem);
  AttentionOutput output{
      at::empty(q.sizes(), q.options()),
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(wide_dtype(q)))};
  is_blocked(problem) ? attention_forward_blocked(problem, output)
                      : forward_materialised(problem, output);
  return output;
}

AttentionGradients attention_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& logsumexp,
    double scale,
    const AttentionMask& mask,
    const AttentionDropout& dropout,
    AttentionGradients into) {
  const AttentionProblem problem{q, k, v, scale, mask, dropout};
  check_problem(problem);
  check(
      dout.sizes() == q.sizes() && out.sizes() == q.sizes() && logsumexp.is_contiguous() &&
          logsumexp.numel() == q.size(0) * q.size(1) * q.size(2) &&
          dout.scalar_type() == q.scalar_type(),
      "attention_backward: dout and out have {} and {} elements, q {}",
      dout.numel(),
      out.numel(),
      q.numel());
  into.dq = result_like(into.dq, q, "dq");
  into.dk = result_like(into.dk, k, "dk");
  into.dv = result_like(into.dv, v, "dv");
  const bool blocked = is_blocked(problem) && is_blocked_operand(into.dq) &&
      is_blocked_operand(into.dk) && is_blocked_operand(into.dv);
  if (blocked) {
    attention_backward_blocked(problem, dout.contiguous(), {out.contiguous(), logsumexp}, into);
  } else {
    backward_materialised(problem, dout, {out, logsumexp}, into);
  }
  return into;
}

} // namespace palimpsest::kernels
