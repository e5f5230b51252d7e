#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/dropout.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/dropout.h>
#include <palimpsest/core/kernels/philox-inl.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace palimpsest::kernels {
#ifndef PALIMPSEST_DROPOUT_RUN_
#define PALIMPSEST_DROPOUT_RUN_

// Consecutive elements that share all coordinates but the last, which enters the counter divided by
// four.
struct DropoutRun {
  PhiloxKey key;
  PhiloxCounter counter; ///< counter[0] is overwritten with the group of four
  uint32_t threshold; ///< a word below it drops its element
  float factor; ///< 1 / (1-p)
};

#endif
} // namespace palimpsest::kernels

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

constexpr int64_t kRunWords = 256;

// y = x * factor where kept, 0 where dropped; x null stands for ones. `first` is the last
// coordinate of element 0.
template <typename T>
void apply_run(const DropoutRun& run, const T* x, int64_t first, int64_t elements, T* y) {
  const FloatTag d;
  const WordTag words_tag;
  HWY_ALIGN uint32_t words[kRunWords + kWordPadding];
  const auto factor = hn::Set(d, run.factor);
  const auto threshold = hn::Set(words_tag, run.threshold);
  int64_t done = 0;
  while (done < elements) {
    const int64_t skip = (first + done) % 4;
    const int64_t part = std::min(kRunWords - skip, elements - done);
    const auto group = static_cast<uint32_t>((first + done) / 4);
    philox_words(run.key, run.counter, group, (skip + part + 3) / 4, words);
    for_each_vector(part, [&](int64_t i, size_t count) HWY_ATTR {
      const auto drawn = hn::LoadU(words_tag, words + skip + i);
      const auto kept = hn::RebindMask(d, hn::Not(hn::Lt(drawn, threshold)));
      const auto value = x == nullptr ? factor : hn::Mul(load(d, x + done + i, count), factor);
      store(d, hn::IfThenElseZero(kept, value), y + done + i, count);
    });
    done += part;
  }
}

void dropout_fast(
    const at::Tensor& x,
    const DropoutRun& run,
    const int64_t* rows,
    const at::Tensor& y) {
  const int64_t positions = y.size(1);
  const int64_t features = y.size(2);
  with_type(y.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const T* source = x.defined() ? x.const_data_ptr<T>() : nullptr;
    at::parallel_for(0, y.size(0) * positions, 8, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        DropoutRun own = run;
        const auto row = static_cast<uint64_t>(rows[token / positions]);
        own.counter = {
            0,
            static_cast<uint32_t>(token % positions),
            static_cast<uint32_t>(row),
            static_cast<uint32_t>(row >> 32)};
        apply_run<T>(
            own,
            source == nullptr ? nullptr : source + token * features,
            0,
            features,
            y.data_ptr<T>() + token * features);
      }
    });
  });
}

void factors_fast(const DropoutRun& run, int64_t first, int64_t elements, float* factors) {
  apply_run<float>(run, nullptr, first, elements, factors);
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {

HWY_EXPORT(dropout_fast);
HWY_EXPORT(factors_fast);

// One Philox call mixes (seed, step, block, call) into 128 bits; features and attention each take a
// half as their key, so the same counters under both never meet.
enum class Purpose { kFeatures = 0, kAttention = 2 };

DropoutRun make_run(double p, const DropoutKey& key, Purpose purpose) {
  check(p >= 0 && p < 1, "dropout: probability {} is outside [0, 1)", p);
  const auto mixed = philox4x32_10(
      {static_cast<uint32_t>(key.step), static_cast<uint32_t>(key.step >> 32), key.block, key.call},
      {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  const auto half = static_cast<size_t>(purpose);
  return {
      .key = {mixed[half], mixed[half + 1]},
      .counter = {},
      .threshold = static_cast<uint32_t>(std::min(std::round(p * 0x1p32), 0x1p32 - 1)),
      .factor = static_cast<float>(1.0 / (1.0 - p))};
}

void check_rows(const at::Tensor& rows, int64_t batch) {
  check(
      rows.defined() && rows.is_cpu() && rows.scalar_type() == at::kLong && rows.dim() == 1 &&
          rows.numel() == batch && rows.is_contiguous(),
      "dropout: rows must be contiguous int64 [{}] on the CPU",
      batch);
}

} // namespace

at::Tensor dropout_factors(
    int64_t positions,
    int64_t features,
    double p,
    const DropoutKey& key,
    const at::Tensor& rows) {
  check_rows(rows, rows.numel());
  at::Tensor factors = at::empty({rows.numel(), positions, features}, at::kFloat);
  HWY_DYNAMIC_DISPATCH(dropout_fast)
  (at::Tensor(), make_run(p, key, Purpose::kFeatures), rows.const_data_ptr<int64_t>(), factors);
  return factors;
}

at::Tensor dropout_forward(
    const at::Tensor& x,
    double p,
    const DropoutKey& key,
    const at::Tensor& rows) {
  check(x.dim() == 3, "dropout: x has {} dimensions, not [B,T,F]", x.dim());
  check_rows(rows, x.size(0));
  const DropoutRun run = make_run(p, key, Purpose::kFeatures);
  if (p == 0) {
    return x;
  }
  if (!x.is_cpu() || !is_fast_dtype(x.scalar_type())) {
    const at::Tensor factors = dropout_factors(x.size(1), x.size(2), p, key, rows);
    return x * factors.to(x.device(), x.scalar_type());
  }
  const at::Tensor source = x.contiguous();
  at::Tensor y = at::empty_like(source);
  HWY_DYNAMIC_DISPATCH(dropout_fast)(source, run, rows.const_data_ptr<int64_t>(), y);
  return y;
}

at::Tensor dropout_backward(
    const at::Tensor& dy,
    double p,
    const DropoutKey& key,
    const at::Tensor& rows) {
  return dropout_forward(dy, p, key, rows);
}

void attention_dropout_factors(
    float* factors,
    const AttentionTile& tile,
    double p,
    const DropoutKey& key) {
  check(
      tile.head >= 0 && tile.head < (1 << 16) && tile.row >= 0 && tile.row < (int64_t{1} << 48),
      "attention dropout: head {} or row {} is too large",
      tile.head,
      tile.row);
  DropoutRun run = make_run(p, key, Purpose::kAttention);
  for (int64_t q = 0; q < tile.queries; ++q) {
    run.counter = {
        0,
        static_cast<uint32_t>(tile.first_query + q),
        static_cast<uint32_t>(tile.row),
        (static_cast<uint32_t>(tile.row >> 32) << 16) | static_cast<uint32_t>(tile.head)};
    HWY_DYNAMIC_DISPATCH(factors_fast)(run, tile.first_key, tile.keys, factors + q * tile.keys);
  }
}

} // namespace palimpsest::kernels
#endif
