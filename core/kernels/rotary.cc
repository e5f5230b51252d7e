#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/rotary.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/rotary.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

// (a, b) -> (a cos - b sin, b cos + a sin) on the two halves of one head.
template <typename T>
void rotate_head(T* head, const float* cosine, const float* sine, float sign, int64_t half) {
  const FloatTag d;
  for_each_vector(half, [&](int64_t i, size_t count) HWY_ATTR {
    const auto c = load(d, cosine + i, count);
    const auto s = hn::Mul(load(d, sine + i, count), hn::Set(d, sign));
    const auto a = load(d, head + i, count);
    const auto b = load(d, head + half + i, count);
    store(d, hn::NegMulAdd(b, s, hn::Mul(a, c)), head + i, count);
    store(d, hn::MulAdd(a, s, hn::Mul(b, c)), head + half + i, count);
  });
}

void rotate_fast(
    const at::Tensor& x,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    const int64_t* positions,
    float sign) {
  const int64_t length = x.size(1);
  const int64_t half = x.size(3) / 2;
  with_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, x.size(0) * length, 16, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t b = token / length;
        const int64_t t = token % length;
        const int64_t position = positions == nullptr ? t : positions[token];
        for (int64_t h = 0; h < x.size(2); ++h) {
          rotate_head(
              x.data_ptr<T>() + b * x.stride(0) + t * x.stride(1) + h * x.stride(2),
              cosines.const_data_ptr<float>() + position * half,
              sines.const_data_ptr<float>() + position * half,
              sign,
              half);
        }
      }
    });
  });
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {

HWY_EXPORT(rotate_fast);

void check_arguments(const at::Tensor& x, const RotaryTable& table, const at::Tensor& positions) {
  const int64_t length = table.cos().size(0);
  check(
      x.dim() == 4 && x.size(3) == 2 * table.cos().size(1),
      "rotary: x has {} dimensions and head size {}, the table is for {}",
      x.dim(),
      x.size(-1),
      2 * table.cos().size(1));
  if (!positions.defined()) {
    check(x.size(1) <= length, "rotary: {} positions, the table has {}", x.size(1), length);
    return;
  }
  check(
      positions.dim() == 2 && positions.size(0) == x.size(0) && positions.size(1) == x.size(1) &&
          positions.scalar_type() == at::kLong && positions.is_cpu() && positions.is_contiguous(),
      "rotary: positions must be contiguous int64 [{}, {}] on the CPU",
      x.size(0),
      x.size(1));
  for (int64_t i = 0; i < positions.numel(); ++i) {
    const int64_t position = positions.const_data_ptr<int64_t>()[i];
    check(
        position >= 0 && position < length,
        "rotary: position {} is outside the table of {}",
        position,
        length);
  }
}

void rotate_fallback(
    const at::Tensor& x,
    const RotaryTable& table,
    const at::Tensor& positions,
    double sign) {
  const int64_t half = x.size(3) / 2;
  const auto wide = c10::promoteTypes(x.scalar_type(), at::kFloat);
  const auto rows_of = [&](const at::Tensor& values) {
    const at::Tensor rows = positions.defined() ? values.index({positions})
                                                : values.narrow(0, 0, x.size(1)).unsqueeze(0);
    return rows.unsqueeze(2).to(x.device(), wide);
  };
  const at::Tensor cosine = rows_of(table.cos());
  const at::Tensor sine = rows_of(table.sin()) * sign;
  const at::Tensor a = x.narrow(3, 0, half).to(wide);
  const at::Tensor b = x.narrow(3, half, half).to(wide);
  const at::Tensor first = a * cosine - b * sine;
  const at::Tensor second = b * cosine + a * sine;
  x.narrow(3, 0, half).copy_(first);
  x.narrow(3, half, half).copy_(second);
}

void rotate(
    const at::Tensor& x,
    const RotaryTable& table,
    const at::Tensor& positions,
    float sign) {
  check_arguments(x, table, positions);
  if (!x.is_cpu() || !is_fast_dtype(x.scalar_type()) || x.stride(3) != 1) {
    rotate_fallback(x, table, positions, sign);
    return;
  }
  HWY_DYNAMIC_DISPATCH(rotate_fast)
  (x,
   table.cos(),
   table.sin(),
   positions.defined() ? positions.const_data_ptr<int64_t>() : nullptr,
   sign);
}

} // namespace

RotaryTable::RotaryTable(
    std::span<const float> inverse_frequencies,
    float attention_scaling,
    int64_t length) {
  at::Tensor frequencies =
      at::empty({static_cast<int64_t>(inverse_frequencies.size())}, at::kFloat);
  std::copy(inverse_frequencies.begin(), inverse_frequencies.end(), frequencies.data_ptr<float>());
  const at::Tensor angles = at::arange(length, at::kFloat).unsqueeze(1) * frequencies.unsqueeze(0);
  cos_ = angles.cos().mul_(attention_scaling);
  sin_ = angles.sin().mul_(attention_scaling);
}

void rotary_forward_(const at::Tensor& x, const RotaryTable& table, const at::Tensor& positions) {
  rotate(x, table, positions, 1.0F);
}

void rotary_backward_(const at::Tensor& dx, const RotaryTable& table, const at::Tensor& positions) {
  rotate(dx, table, positions, -1.0F);
}

} // namespace palimpsest::kernels
#endif
