#pragma once

// Scaled dot-product attention with grouped key/value heads, without the T x T matrix.
//
//   const kernels::AttentionMask mask{.causal = true};
//   auto [out, logsumexp] = kernels::attention_forward(q, k, v, scale, mask);
//   kernels::attention_backward(
//       dout, q, k, v, out, logsumexp, scale, mask, {}, {dq, dk, dv});   // views of one dqkv
//
// q [B,T,Hq,D], k and v [B,S,Hkv,D], with Hq a multiple of Hkv: query head h reads key/value head h
// / (Hq/Hkv). The usual inputs are views of one fused tensor: any strides but 1 in the last
// dimension. fp32 and bf16; the softmax is in fp32. The method is flash attention's (Dao et al.,
// 2022): the backward recomputes probabilities from logsumexp.

#include <palimpsest/core/kernels/dropout.h>

namespace palimpsest::kernels {

/// Which keys a query sees.
struct AttentionMask {
  /// Query t sees keys 0 .. t, where there are as many keys as queries. Of more keys the queries are
  /// the last: T queries and S keys, and query t sees keys 0 .. S - T + t.
  bool causal = false;
  /// Of those only the last so many, its own among them: a sliding window (Beltagy et al., 2020;
  /// Mistral's). 0: all. Goes with `causal`.
  int64_t window = 0;
  /// int64 [B,T] on the CPU: each query's position in its document, of which it sees no key before
  /// the start. Documents follow each other in a row, and each begins at 0. Undefined: a row is one
  /// document. Goes with `causal` and as many keys as queries.
  at::Tensor positions = {};
};

/// Pairs of a query and a key that it sees, in one causal sequence: with window w below the length
/// t, w (w + 1) / 2 + (t - w) w; otherwise t (t + 1) / 2.
int64_t causal_pairs(int64_t length, int64_t window);

/// Dropout on the probabilities; p = 0 is none.
struct AttentionDropout {
  double p = 0;
  DropoutKey key = {};
  at::Tensor rows = {}; ///< int64 [B] on the CPU: each sequence's row number in the step
};

struct AttentionOutput {
  at::Tensor out; ///< [B,T,Hq,D], contiguous, in q's dtype
  at::Tensor logsumexp; ///< fp32 [B,Hq,T]: of the scaled scores of each query
};

struct AttentionGradients {
  at::Tensor dq; ///< [B,T,Hq,D]
  at::Tensor dk; ///< [B,S,Hkv,D]
  at::Tensor dv; ///< [B,S,Hkv,D]
};

/// softmax(scale q k^T) v. Tiles that a mask hides whole cost nothing.
AttentionOutput attention_forward(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double scale,
    const AttentionMask& mask,
    const AttentionDropout& dropout = {});

/// The gradients from dout [B,T,Hq,D] and what the forward gave. `into` names tensors to overwrite
/// (views of one fused gradient, say); what is undefined in it is allocated. Returns all three.
AttentionGradients attention_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& logsumexp,
    double scale,
    const AttentionMask& mask,
    const AttentionDropout& dropout = {},
    AttentionGradients into = {});

} // namespace palimpsest::kernels
