#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/norm.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/norm.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

template <typename T>
float sum_of_squares(const T* x, int64_t width) {
  const FloatTag d;
  auto sum = hn::Zero(d);
  for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
    const auto v = load(d, x + i, count);
    sum = hn::MulAdd(v, v, sum);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <typename T>
void rms_norm_rows(
    const T* x,
    const T* weight,
    int64_t rows,
    int64_t width,
    float eps,
    T* y,
    float* rstd) {
  const FloatTag d;
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    rstd[r] = 1.0F / std::sqrt(sum_of_squares(x, width) / static_cast<float>(width) + eps);
    const auto scale = hn::Set(d, rstd[r]);
    for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
      const auto normalised = rounded_to<T>(d, hn::Mul(load(d, x + i, count), scale));
      store(d, hn::Mul(normalised, load(d, weight + i, count)), y + i, count);
    });
  }
}

// With n = x * rstd and g = dy * weight: dx = rstd * (g - n * mean(g * n)), dweight = sum over rows
// of dy * n.
template <typename T>
void rms_norm_backward_rows(
    const T* dy,
    const T* x,
    const T* weight,
    const float* rstd,
    const T* add_to,
    int64_t rows,
    int64_t width,
    T* dx,
    float* grad_weight) {
  const FloatTag d;
  for (int64_t r = 0; r < rows; ++r, dy += width, x += width, dx += width) {
    const auto scale = hn::Set(d, rstd[r]);
    auto dot = hn::Zero(d);
    for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
      const auto g = hn::Mul(load(d, dy + i, count), load(d, weight + i, count));
      dot = hn::MulAdd(g, load(d, x + i, count), dot);
    });
    const float mean = hn::GetLane(hn::SumOfLanes(d, dot)) * rstd[r] / static_cast<float>(width);
    const auto factor = hn::Set(d, mean * rstd[r]);
    for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
      const auto upstream = load(d, dy + i, count);
      const auto value = load(d, x + i, count);
      const auto g = hn::Mul(upstream, load(d, weight + i, count));
      auto result = hn::Mul(scale, hn::NegMulAdd(value, factor, g));
      if (add_to != nullptr) {
        result = hn::Add(result, load(d, add_to + r * width + i, count));
      }
      store(d, result, dx + i, count);
      if (grad_weight != nullptr) {
        const auto normalised = rounded_to<T>(d, hn::Mul(value, scale));
        const auto sum = load(d, grad_weight + i, count);
        store(d, hn::MulAdd(upstream, normalised, sum), grad_weight + i, count);
      }
    });
  }
}

void rms_norm_forward_fast(
    const at::Tensor& x,
    const at::Tensor& weight,
    double eps,
    const RmsNormOutput& output) {
  const int64_t width = x.size(1);
  with_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const T* source = x.const_data_ptr<T>();
    const T* scale = weight.const_data_ptr<T>();
    T* y = output.y.data_ptr<T>();
    float* rstd = output.rstd.data_ptr<float>();
    at::parallel_for(0, x.size(0), 16, [&](int64_t begin, int64_t end) {
      const int64_t offset = begin * width;
      rms_norm_rows(
          source + offset,
          scale,
          end - begin,
          width,
          static_cast<float>(eps),
          y + offset,
          rstd + begin);
    });
  });
}

// Each group of rows sums its part of the weight gradient apart, in row order; groups are then
// added in order. Groups depend on the number of rows alone.
void rms_norm_backward_fast(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& rstd,
    const at::Tensor& add_to,
    const at::Tensor& dx,
    const at::Tensor& partials) {
  const int64_t rows = x.size(0);
  const int64_t width = x.size(1);
  const int64_t groups = partials.size(0);
  const int64_t group_rows = (rows + groups - 1) / groups;
  with_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const T* upstream = dy.const_data_ptr<T>();
    const T* source = x.const_data_ptr<T>();
    const T* scale = weight.const_data_ptr<T>();
    const T* addend = add_to.defined() ? add_to.const_data_ptr<T>() : nullptr;
    T* result = dx.data_ptr<T>();
    float* sums = partials.size(1) > 0 ? partials.data_ptr<float>() : nullptr;
    at::parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        const int64_t first = std::min(group * group_rows, rows);
        const int64_t offset = first * width;
        rms_norm_backward_rows(
            upstream + offset,
            source + offset,
            scale,
            rstd.const_data_ptr<float>() + first,
            addend == nullptr ? nullptr : addend + offset,
            std::min(group_rows, rows - first),
            width,
            result + offset,
            sums == nullptr ? nullptr : sums + group * width);
      }
    });
  });
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {

HWY_EXPORT(rms_norm_forward_fast);
HWY_EXPORT(rms_norm_backward_fast);

void check_arguments(const at::Tensor& x, const at::Tensor& weight) {
  check(
      x.dim() == 2 && weight.dim() == 1 && x.size(1) == weight.size(0) &&
          x.scalar_type() == weight.scalar_type(),
      "rms_norm: x has {} elements of {}, weight {} of {}",
      x.numel(),
      c10::toString(x.scalar_type()),
      weight.numel(),
      c10::toString(weight.scalar_type()));
}

// fp32, or fp64 for fp64: what statistics are computed in.
at::ScalarType statistics_dtype(const at::Tensor& x) {
  return c10::promoteTypes(x.scalar_type(), at::kFloat);
}

RmsNormOutput forward_fallback(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(statistics_dtype(x));
  const at::Tensor rstd = at::rsqrt(at::mean(wide * wide, {-1}) + eps);
  return {(wide * rstd.unsqueeze(1)).to(x.scalar_type()) * weight, rstd};
}

at::Tensor backward_fallback(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& rstd,
    const at::Tensor& grad_weight,
    const at::Tensor& add_to) {
  const auto wide = statistics_dtype(x);
  const at::Tensor scale = rstd.unsqueeze(1);
  const at::Tensor normalised = x.to(wide) * scale;
  const at::Tensor g = dy.to(wide) * weight.to(wide);
  at::Tensor dx = scale * (g - normalised * at::mean(g * normalised, {-1}, /*keepdim=*/true));
  if (add_to.defined()) {
    dx = dx + add_to.to(wide);
  }
  if (grad_weight.defined()) {
    grad_weight.add_((dy.to(wide) * normalised.to(x.scalar_type()).to(wide)).sum(0));
  }
  return dx.to(dy.scalar_type());
}

} // namespace

RmsNormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_arguments(x, weight);
  if (!x.is_cpu() || !is_fast_dtype(x.scalar_type())) {
    return forward_fallback(x, weight, eps);
  }
  const at::Tensor source = x.contiguous();
  RmsNormOutput output{
      at::empty_like(source), at::empty({x.size(0)}, x.options().dtype(at::kFloat))};
  HWY_DYNAMIC_DISPATCH(rms_norm_forward_fast)(source, weight.contiguous(), eps, output);
  return output;
}

at::Tensor rms_norm_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& rstd,
    const at::Tensor& grad_weight,
    const at::Tensor& add_to) {
  check_arguments(x, weight);
  check(
      dy.sizes() == x.sizes() && dy.scalar_type() == x.scalar_type() && rstd.numel() == x.size(0) &&
          (!add_to.defined() || add_to.sizes() == x.sizes()) &&
          (!grad_weight.defined() || grad_weight.sizes() == weight.sizes()),
      "rms_norm_backward: an argument does not fit x [{}, {}]",
      x.size(0),
      x.size(1));
  if (!x.is_cpu() || !is_fast_dtype(x.scalar_type())) {
    return backward_fallback(dy, x, weight, rstd, grad_weight, add_to);
  }
  const at::Tensor upstream = dy.contiguous();
  const int64_t rows = x.size(0);
  const int64_t group_rows = std::max<int64_t>(16, (rows + 63) / 64);
  const int64_t groups = std::max<int64_t>(1, (rows + group_rows - 1) / group_rows);
  const at::Tensor partials =
      at::zeros({groups, grad_weight.defined() ? x.size(1) : 0}, x.options().dtype(at::kFloat));
  at::Tensor dx = at::empty_like(upstream);
  HWY_DYNAMIC_DISPATCH(rms_norm_backward_fast)
  (upstream,
   x.contiguous(),
   weight.contiguous(),
   rstd,
   add_to.defined() ? add_to.contiguous() : add_to,
   dx,
   partials);
  if (grad_weight.defined()) {
    for (int64_t group = 0; group < groups; ++group) {
      grad_weight.add_(partials.select(0, group));
    }
  }
  return dx;
}

} // namespace palimpsest::kernels
#endif
