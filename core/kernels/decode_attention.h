#pragma once

// Attention of one new token of each of several sequences over the keys that each has: what
// generating a token asks for.
//
//   std::vector<kernels::KeysAndValues> seen = {{cache.keys(), cache.values()}, ...};
//   at::Tensor out = kernels::decode_attention(q, seen, scale);      // q [N,Hq,D] -> [N,Hq,D]
//
// Bound by reading keys and values, once for all query heads that share them. Keys are taken in
// chunks of fixed size whose softmaxes are joined in order, as flash-decoding does (Dao et al.,
// 2023), so that one long sequence too keeps all threads busy. A sequence's result depends, to the
// bit, on that sequence alone: not on how many others there are, nor on the number of threads.

#include <ATen/core/Tensor.h>

#include <span>

namespace palimpsest::kernels {

/// What one query sees: [S,Hkv,D] each, S at least 1, any strides but 1 in the last dimension.
struct KeysAndValues {
  at::Tensor k;
  at::Tensor v;
};

/// softmax(scale q k^T) v; q [N,Hq,D] with N = seen.size() and Hq a multiple of Hkv. fp32 and bf16
/// on the CPU with the softmax in fp32; by attention_forward elsewhere. InternalError where the
/// sizes do not fit.
at::Tensor decode_attention(const at::Tensor& q, std::span<const KeysAndValues> seen, double scale);

} // namespace palimpsest::kernels
