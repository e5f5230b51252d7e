#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/decode_attention.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/kernels/decode_attention.h>
#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/simd-inl.h>
#include <palimpsest/core/kernels/softmax-inl.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

constexpr int64_t kChunk = 256;

/// Keys [first, first + count) of one sequence and one key/value head.
struct DecodeChunk {
  int64_t sequence;
  int64_t kv_head;
  int64_t first;
  int64_t count;
};

// sums = factor sums + weight v
template <typename T>
void add(float* sums, float factor, float weight, const T* v, int64_t count) {
  const FloatTag d;
  for_each_vector(count, [&](int64_t i, size_t lanes) HWY_ATTR {
    const auto kept = hn::Mul(load(d, sums + i, lanes), hn::Set(d, factor));
    store(d, hn::MulAdd(hn::Set(d, weight), load(d, v + i, lanes), kept), sums + i, lanes);
  });
}

/// One query head's share of a chunk: the largest score, the sum of exponentials relative to it,
/// and the values weighted by them; in one row of fp32.
struct Partial {
  float* row;
  float& maximum() const {
    return row[0];
  }
  float& sum() const {
    return row[1];
  }
  float* values() const {
    return row + 2;
  }
};

template <typename T>
void attend_chunk(
    const KeysAndValues& seen,
    const DecodeChunk& chunk,
    const float* q,
    float scale,
    Partial out) {
  const int64_t width = seen.k.size(2);
  const T* keys = seen.k.const_data_ptr<T>() + chunk.kv_head * seen.k.stride(1);
  const T* values = seen.v.const_data_ptr<T>() + chunk.kv_head * seen.v.stride(1);
  std::array<float, kChunk> scores;
  for (int64_t j = 0; j < chunk.count; ++j) {
    scores[j] = scale * dot(q, keys + (chunk.first + j) * seen.k.stride(0), width);
  }
  out.maximum() = largest(scores.data(), chunk.count);
  out.sum() = exponentials(scores.data(), chunk.count, 1.0F, out.maximum());
  std::fill_n(out.values(), width, 0.0F);
  for (int64_t j = 0; j < chunk.count; ++j) {
    add(out.values(), 1.0F, scores[j], values + (chunk.first + j) * seen.v.stride(0), width);
  }
}

// Joins the chunks of one head in their order.
template <typename T>
void join(
    const float* partials,
    int64_t stride,
    int64_t count,
    int64_t width,
    float* sums,
    T* out) {
  float maximum = Partial{const_cast<float*>(partials)}.maximum();
  for (int64_t c = 1; c < count; ++c) {
    maximum = std::max(maximum, partials[c * stride]);
  }
  float sum = 0;
  std::fill_n(sums, width, 0.0F);
  for (int64_t c = 0; c < count; ++c) {
    const float* partial = partials + c * stride;
    const float factor = std::exp(partial[0] - maximum);
    sum += factor * partial[1];
    add(sums, 1.0F, factor, partial + 2, width);
  }
  const FloatTag d;
  for_each_vector(width, [&](int64_t i, size_t lanes) HWY_ATTR {
    store(d, hn::Mul(load(d, sums + i, lanes), hn::Set(d, 1.0F / sum)), out + i, lanes);
  });
}

void decode_fast(
    const at::Tensor& out,
    const at::Tensor& q,
    std::span<const KeysAndValues> seen,
    float scale) {
  const int64_t sequences = q.size(0);
  const int64_t heads = q.size(1);
  const int64_t width = q.size(2);
  const int64_t kv_heads = seen.front().k.size(1);
  const int64_t group = heads / kv_heads;
  std::vector<DecodeChunk> chunks; // a sequence's chunks of a head are neighbours
  std::vector<int64_t> begins; // by sequence
  for (int64_t n = 0; n < sequences; ++n) {
    begins.push_back(std::ssize(chunks));
    for (int64_t head = 0; head < kv_heads; ++head) {
      for (int64_t first = 0; first < seen[n].k.size(0); first += kChunk) {
        chunks.push_back({n, head, first, std::min(kChunk, seen[n].k.size(0) - first)});
      }
    }
  }
  begins.push_back(std::ssize(chunks));
  const at::Tensor queries = q.to(at::kFloat).contiguous();
  const at::Tensor partials = at::empty({group, std::ssize(chunks), width + 2}, at::kFloat);
  const int64_t stride = width + 2;
  with_type(out.scalar_type(), [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, std::ssize(chunks), 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const DecodeChunk& chunk = chunks[c];
        for (int64_t g = 0; g < group; ++g) {
          const int64_t row = chunk.sequence * heads + chunk.kv_head * group + g;
          attend_chunk<T>(
              seen[chunk.sequence],
              chunk,
              queries.const_data_ptr<float>() + row * width,
              scale,
              {partials.data_ptr<float>() + (g * std::ssize(chunks) + c) * stride});
        }
      }
    });
    at::parallel_for(0, sequences * heads, 16, [&](int64_t begin, int64_t end) {
      std::vector<float> sums(static_cast<size_t>(width));
      for (int64_t row = begin; row < end; ++row) {
        const int64_t n = row / heads;
        const int64_t count = (begins[n + 1] - begins[n]) / kv_heads;
        const int64_t first = begins[n] + row % heads / group * count;
        join(
            partials.const_data_ptr<float>() + (row % group * std::ssize(chunks) + first) * stride,
            stride,
            count,
            width,
            sums.data(),
            out.data_ptr<T>() + row * width);
      }
    });
  });
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {

HWY_EXPORT(decode_fast);

bool is_fast_cache(const at::Tensor& tensor) {
  return tensor.is_cpu() && is_fast_dtype(tensor.scalar_type()) && tensor.stride(2) == 1;
}

void check_sizes(const at::Tensor& q, std::span<const KeysAndValues> seen) {
  check(
      q.dim() == 3 && q.size(0) == std::ssize(seen),
      "decode_attention: {} queries over {} sequences",
      q.size(0),
      seen.size());
  for (const auto& [k, v] : seen) {
    check(
        k.dim() == 3 && k.sizes() == v.sizes() && k.size(0) > 0 && k.size(1) > 0 &&
            k.size(1) == seen.front().k.size(1) && q.size(1) % k.size(1) == 0 &&
            k.size(2) == q.size(2) && k.scalar_type() == q.scalar_type() &&
            v.scalar_type() == q.scalar_type(),
        "decode_attention: q, k and v of {}, {} and {} elements do not fit each other",
        q.numel(),
        k.numel(),
        v.numel());
  }
}

} // namespace

at::Tensor decode_attention(
    const at::Tensor& q,
    std::span<const KeysAndValues> seen,
    double scale) {
  check_sizes(q, seen);
  at::Tensor out = at::empty(q.sizes(), q.options());
  const bool fast = std::ranges::all_of(
      seen, [](const auto& one) { return is_fast_cache(one.k) && is_fast_cache(one.v); });
  if (fast && !seen.empty()) {
    HWY_DYNAMIC_DISPATCH(decode_fast)(out, q, seen, static_cast<float>(scale));
    return out;
  }
  for (int64_t n = 0; n < q.size(0); ++n) {
    const auto whole = [](const at::Tensor& tensor) { return tensor.unsqueeze(0); };
    const at::Tensor query = q.select(0, n).unsqueeze(0).unsqueeze(0);
    out.select(0, n).copy_(
        attention_forward(query, whole(seen[n].k), whole(seen[n].v), scale, {}).out[0][0]);
  }
  return out;
}

} // namespace palimpsest::kernels
#endif
