#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/reduce.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/reduce.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <ATen/Parallel.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <array>
#include <atomic>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

// Sixteen running values, whatever the vector's width: so every instruction set folds in the same
// order.
constexpr int64_t kWays = 16;

// A plain loop, which the compiler vectorises for each instruction set. Squares of floats are exact
// in double.
template <typename T, typename Measure, typename Combine>
double fold_chunk(const T* values, int64_t count, Measure measure, Combine combine) {
  std::array<double, kWays> running{};
  int64_t i = 0;
  for (; i + kWays <= count; i += kWays) {
    for (int64_t w = 0; w < kWays; ++w) {
      running[w] = combine(running[w], measure(static_cast<float>(values[i + w])));
    }
  }
  for (int64_t w = 0; i + w < count; ++w) {
    running[w] = combine(running[w], measure(static_cast<float>(values[i + w])));
  }
  double total = 0;
  for (const double value : running) {
    total = combine(total, value);
  }
  return total;
}

template <typename T>
double reduce_chunk(const T* values, int64_t count, ChunkReduction reduction) {
  const auto add = [](double sum, double v) { return sum + v; };
  const auto absolute = [](double v) { return v < 0 ? -v : v; };
  if (reduction == ChunkReduction::kSumOfSquares) {
    return fold_chunk(
        values, count, [](double v) { return v * v; }, add);
  }
  if (reduction == ChunkReduction::kSumOfAbs) {
    return fold_chunk(values, count, absolute, add);
  }
  return fold_chunk(
      values, count, absolute, [](double top, double v) { return v > top || v != v ? v : top; });
}

void chunk_reduce_fast(const at::Tensor& values, ChunkReduction reduction, double* chunks) {
  const int64_t elements = values.numel();
  with_type(values.scalar_type(), [&](auto type) {
    const auto* data = values.const_data_ptr<decltype(type)>();
    at::parallel_for(0, chunk_count(elements), 8, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t first = c * kReduceChunk;
        chunks[c] = reduce_chunk(data + first, std::min(kReduceChunk, elements - first), reduction);
      }
    });
  });
}

// A value is finite where value * 0 is 0, and otherwise NaN, which sums keep.
template <typename T>
bool chunk_is_finite(const T* values, int64_t count) {
  const FloatTag d;
  auto sum = hn::Zero(d);
  for_each_vector(count, [&](int64_t i, size_t lanes) HWY_ATTR {
    sum = hn::MulAdd(load(d, values + i, lanes), hn::Zero(d), sum);
  });
  return hn::AllTrue(d, hn::Eq(sum, hn::Zero(d)));
}

bool all_finite_fast(const at::Tensor& values) {
  const int64_t elements = values.numel();
  std::atomic<bool> finite = true;
  with_type(values.scalar_type(), [&](auto type) {
    const auto* data = values.const_data_ptr<decltype(type)>();
    at::parallel_for(0, chunk_count(elements), 8, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kReduceChunk;
      if (!chunk_is_finite(data + first, std::min(end * kReduceChunk, elements) - first)) {
        finite = false;
      }
    });
  });
  return finite;
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {

HWY_EXPORT(chunk_reduce_fast);
HWY_EXPORT(all_finite_fast);

} // namespace

void chunk_reduce(const at::Tensor& values, ChunkReduction reduction, std::span<double> chunks) {
  check(
      values.is_contiguous() && static_cast<int64_t>(chunks.size()) == chunk_count(values.numel()),
      "chunk_reduce: {} chunks for {} elements, or they are not contiguous",
      chunks.size(),
      values.numel());
  if (is_fast(values)) {
    HWY_DYNAMIC_DISPATCH(chunk_reduce_fast)(values, reduction, chunks.data());
    return;
  }
  const at::Tensor flat = values.view({-1});
  for (size_t c = 0; c < chunks.size(); ++c) {
    const auto first = static_cast<int64_t>(c) * kReduceChunk;
    const at::Tensor sizes =
        flat.narrow(0, first, std::min(kReduceChunk, flat.numel() - first)).to(at::kDouble).abs();
    const at::Tensor result = reduction == ChunkReduction::kSumOfSquares ? sizes.square().sum()
        : reduction == ChunkReduction::kSumOfAbs                         ? sizes.sum()
                                                                         : sizes.max();
    chunks[c] = result.item<double>();
  }
}

bool all_finite(const at::Tensor& values) {
  if (is_fast(values)) {
    return HWY_DYNAMIC_DISPATCH(all_finite_fast)(values);
  }
  return at::isfinite(values).all().item<bool>();
}

} // namespace palimpsest::kernels
#endif
