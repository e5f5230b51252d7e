#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/norm.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/norm.h>
#include <palimpsest/core/kernels/norm_groups.h>
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
#include <type_traits>
#include <utility>

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

/// Rows of [R,H], or of the heads of [N,heads,D].
template <typename T>
struct Rows {
  explicit Rows(const at::Tensor& tensor)
      : data(tensor.data_ptr<T>()), inner(tensor.dim() == 3 ? tensor.size(1) : 1),
        outer_stride(tensor.stride(0)), inner_stride(tensor.dim() == 3 ? tensor.stride(1) : 0) {}
  T* row(int64_t r) const {
    return data + r / inner * outer_stride + r % inner * inner_stride;
  }
  T* data;
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;
};

// n as the weight meets it, and the factor that the weight stands for.
template <RmsGain gain, typename T>
HWY_INLINE FloatVector normalised(FloatTag d, FloatVector x, FloatVector scale) {
  const auto n = hn::Mul(x, scale);
  return gain == RmsGain::kWeight ? rounded_to<T>(d, n) : n;
}

template <RmsGain gain>
HWY_INLINE FloatVector factor(FloatTag d, FloatVector weight) {
  return gain == RmsGain::kWeight ? weight : hn::Add(weight, hn::Set(d, 1.0F));
}

template <RmsGain gain, typename T>
void rms_norm_rows(
    const Rows<T>& x,
    const T* weight,
    int64_t begin,
    int64_t end,
    int64_t width,
    float eps,
    const Rows<T>& y,
    float* rstd) {
  const FloatTag d;
  for (int64_t r = begin; r < end; ++r) {
    const T* source = x.row(r);
    T* target = y.row(r);
    rstd[r] = 1.0F / std::sqrt(sum_of_squares(source, width) / static_cast<float>(width) + eps);
    const auto scale = hn::Set(d, rstd[r]);
    for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
      const auto n = normalised<gain, T>(d, load(d, source + i, count), scale);
      store(d, hn::Mul(n, factor<gain>(d, load(d, weight + i, count))), target + i, count);
    });
  }
}

/// What a backward reads and writes beside its rows.
template <typename T>
struct RmsNormBackward {
  Rows<T> dy;
  Rows<T> x;
  Rows<T> dx; // may be dy
  const T* weight;
  const float* rstd;
  const T* add_to; // [R,H] or null
  int64_t width;
};

// With n = x * rstd and g = dy * weight: dx = rstd * (g - n * mean(g * n)), dweight = sum over rows
// of dy * n.
template <RmsGain gain, typename T>
void rms_norm_backward_rows(
    const RmsNormBackward<T>& p,
    int64_t first,
    int64_t end,
    float* grad_weight) {
  const FloatTag d;
  const int64_t width = p.width;
  // Read once: for all that the compiler knows, what is stored could lie over them.
  const T* const weight_row = p.weight;
  const T* const add_to = p.add_to;
  for (int64_t r = first; r < end; ++r) {
    const T* dy = p.dy.row(r);
    const T* x = p.x.row(r);
    T* dx = p.dx.row(r);
    const auto scale = hn::Set(d, p.rstd[r]);
    auto dot = hn::Zero(d);
    for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
      const auto g =
          hn::Mul(load(d, dy + i, count), factor<gain>(d, load(d, weight_row + i, count)));
      dot = hn::MulAdd(g, load(d, x + i, count), dot);
    });
    const float mean = hn::GetLane(hn::SumOfLanes(d, dot)) * p.rstd[r] / static_cast<float>(width);
    const auto towards_x = hn::Set(d, mean * p.rstd[r]);
    for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
      const auto upstream = load(d, dy + i, count);
      const auto value = load(d, x + i, count);
      const auto g = hn::Mul(upstream, factor<gain>(d, load(d, weight_row + i, count)));
      auto result = hn::Mul(scale, hn::NegMulAdd(value, towards_x, g));
      if (add_to != nullptr) {
        result = hn::Add(result, load(d, add_to + r * width + i, count));
      }
      store(d, result, dx + i, count);
      if (grad_weight != nullptr) {
        const auto n = normalised<gain, T>(d, value, scale);
        const auto sum = load(d, grad_weight + i, count);
        store(d, hn::MulAdd(upstream, n, sum), grad_weight + i, count);
      }
    });
  }
}

template <typename F>
void with_gain(RmsGain gain, F&& f) {
  if (gain == RmsGain::kWeight) {
    f(std::integral_constant<RmsGain, RmsGain::kWeight>());
  } else {
    f(std::integral_constant<RmsGain, RmsGain::kOnePlusWeight>());
  }
}

void rms_norm_forward_fast(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight,
    double eps,
    RmsGain gain,
    const at::Tensor& rstd) {
  with_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    with_gain(gain, [&](auto kind) {
      const Rows<T> source(x);
      const Rows<T> target(y);
      at::parallel_for(0, rstd.numel(), 16, [&](int64_t begin, int64_t end) {
        rms_norm_rows<kind.value>(
            source,
            weight.const_data_ptr<T>(),
            begin,
            end,
            weight.size(0),
            static_cast<float>(eps),
            target,
            rstd.data_ptr<float>());
      });
    });
  });
}

// Each group of rows adds into its own row of `partials`.
void rms_norm_backward_fast(
    const at::Tensor& dx,
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& rstd,
    const at::Tensor& add_to,
    RmsGain gain,
    const RowGroups& groups,
    const at::Tensor& partials) {
  with_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const RmsNormBackward<T> problem{
        .dy = Rows<T>(dy),
        .x = Rows<T>(x),
        .dx = Rows<T>(dx),
        .weight = weight.const_data_ptr<T>(),
        .rstd = rstd.const_data_ptr<float>(),
        .add_to = add_to.defined() ? add_to.const_data_ptr<T>() : nullptr,
        .width = weight.size(0)};
    float* sums = partials.size(1) > 0 ? partials.data_ptr<float>() : nullptr;
    with_gain(gain, [&](auto kind) {
      groups.for_each([&](int64_t group, int64_t begin, int64_t end) {
        rms_norm_backward_rows<kind.value>(
            problem, begin, end, sums == nullptr ? nullptr : sums + group * problem.width);
      });
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

// Rows of x, 2-D or 3-D.
int64_t row_count(const at::Tensor& x) {
  return x.dim() == 3 ? x.size(0) * x.size(1) : x.size(0);
}

void check_arguments(const at::Tensor& x, const at::Tensor& weight) {
  check(
      (x.dim() == 2 || x.dim() == 3) && weight.dim() == 1 && x.size(-1) == weight.size(0) &&
          x.scalar_type() == weight.scalar_type(),
      "rms_norm: x has {} elements of {}, weight {} of {}",
      x.numel(),
      c10::toString(x.scalar_type()),
      weight.numel(),
      c10::toString(weight.scalar_type()));
}

void check_rows(const at::Tensor& rows, const at::Tensor& x) {
  check(
      rows.sizes() == x.sizes() && rows.scalar_type() == x.scalar_type(),
      "rms_norm: a tensor of {} elements beside x of {}",
      rows.numel(),
      x.numel());
}

bool is_rows(const at::Tensor& x) {
  return x.is_cpu() && is_fast_dtype(x.scalar_type()) && x.stride(-1) == 1;
}

at::Tensor factor_of(const at::Tensor& weight, RmsGain gain) {
  const at::Tensor wide = weight.to(statistics_dtype(weight));
  return gain == RmsGain::kWeight ? wide : wide + 1;
}

// n in the wide dtype, as the weight meets it.
at::Tensor normalised_rows(const at::Tensor& x, const at::Tensor& rstd, RmsGain gain) {
  const at::Tensor n =
      x.to(statistics_dtype(x)) * rstd.view(x.sizes().slice(0, x.dim() - 1)).unsqueeze(-1);
  return gain == RmsGain::kWeight ? n.to(x.scalar_type()).to(n.scalar_type()) : n;
}

at::Tensor forward_fallback(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight,
    double eps,
    RmsGain gain) {
  const at::Tensor wide = x.to(statistics_dtype(x));
  const at::Tensor rstd = at::rsqrt(at::mean(wide * wide, {-1}) + eps).reshape({-1});
  y.copy_(normalised_rows(x, rstd, gain) * factor_of(weight, gain));
  return rstd;
}

/// As rms_norm_backward's arguments; `dx` may be `dy`.
struct Backward {
  at::Tensor dx;
  at::Tensor dy;
  at::Tensor x;
  at::Tensor weight;
  at::Tensor rstd;
  at::Tensor grad_weight;
  at::Tensor add_to;
  RmsGain gain;
};

void backward_fallback(const Backward& backward) {
  const auto& [dx, dy, x, weight, rstd, grad_weight, add_to, gain] = backward;
  const auto wide = statistics_dtype(x);
  const at::Tensor scale = rstd.view(x.sizes().slice(0, x.dim() - 1)).unsqueeze(-1);
  const at::Tensor n = x.to(wide) * scale;
  const at::Tensor g = dy.to(wide) * factor_of(weight, gain);
  at::Tensor result = scale * (g - n * at::mean(g * n, {-1}, /*keepdim=*/true));
  if (add_to.defined()) {
    result = result + add_to.to(wide);
  }
  if (grad_weight.defined()) {
    const at::Tensor products = dy.to(wide) * normalised_rows(x, rstd, gain);
    grad_weight.add_(products.view({-1, x.size(-1)}).sum(0));
  }
  dx.copy_(result);
}

void run(const Backward& backward) {
  const auto& [dx, dy, x, weight, rstd, grad_weight, add_to, gain] = backward;
  check_arguments(x, weight);
  check_rows(dy, x);
  const int64_t rows = row_count(x);
  check(
      rstd.numel() == rows && (!add_to.defined() || add_to.sizes() == x.sizes()) &&
          (!grad_weight.defined() || grad_weight.sizes() == weight.sizes()),
      "rms_norm_backward: an argument does not fit {} rows of {}",
      rows,
      x.size(-1));
  if (!is_rows(x) || !is_rows(dy) || !is_rows(dx)) {
    backward_fallback(backward);
    return;
  }
  const RowGroups groups(rows);
  const at::Tensor partials = at::zeros(
      {groups.count(), grad_weight.defined() ? x.size(-1) : 0}, x.options().dtype(at::kFloat));
  HWY_DYNAMIC_DISPATCH(rms_norm_backward_fast)
  (dx,
   dy,
   x,
   weight.contiguous(),
   rstd,
   add_to.defined() ? add_to.contiguous() : add_to,
   gain,
   groups,
   partials);
  add_in_order(grad_weight, partials);
}

} // namespace

RmsNormOutput rms_norm_forward(
    const at::Tensor& x,
    const at::Tensor& weight,
    double eps,
    RmsGain gain) {
  const at::Tensor source = x.contiguous();
  at::Tensor y = at::empty_like(source);
  at::Tensor rstd = rms_norm_forward_out(y, source, weight, eps, gain);
  return {std::move(y), std::move(rstd)};
}

at::Tensor rms_norm_forward_out(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight,
    double eps,
    RmsGain gain) {
  check_arguments(x, weight);
  check_rows(y, x);
  if (!is_rows(x) || !is_rows(y)) {
    return forward_fallback(y, x, weight, eps, gain);
  }
  at::Tensor rstd = at::empty({row_count(x)}, x.options().dtype(at::kFloat));
  HWY_DYNAMIC_DISPATCH(rms_norm_forward_fast)(y, x, weight.contiguous(), eps, gain, rstd);
  return rstd;
}

at::Tensor rms_norm_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& rstd,
    const at::Tensor& grad_weight,
    const at::Tensor& add_to,
    RmsGain gain) {
  const at::Tensor upstream = dy.contiguous();
  at::Tensor dx = at::empty_like(upstream);
  run({dx, upstream, x.contiguous(), weight, rstd, grad_weight, add_to, gain});
  return dx;
}

void rms_norm_backward_(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& rstd,
    const at::Tensor& grad_weight,
    RmsGain gain) {
  run({dy, dy, x, weight, rstd, grad_weight, {}, gain});
}

} // namespace palimpsest::kernels
#endif
