#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/layer_norm.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/layer_norm.h>
#include <palimpsest/core/kernels/norm_groups.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

// Two passes, so that a mean far from zero costs no digits.
template <typename T>
void row_statistics(const T* x, int64_t width, float eps, float* statistics) {
  const FloatTag d;
  auto sum = hn::Zero(d);
  for_each_vector(
      width, [&](int64_t i, size_t count) HWY_ATTR { sum = hn::Add(sum, load(d, x + i, count)); });
  const float mean = hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<float>(width);
  auto squares = hn::Zero(d);
  for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
    const auto centred = hn::Sub(load(d, x + i, count), hn::Set(d, mean));
    squares = hn::Add(squares, fill_rest(d, hn::Mul(centred, centred), count, 0.0F));
  });
  const float variance = hn::GetLane(hn::SumOfLanes(d, squares)) / static_cast<float>(width);
  statistics[0] = mean;
  statistics[1] = 1.0F / std::sqrt(variance + eps);
}

/// What one call works on; x, dy, dx, y and add_to are contiguous [R,H].
template <typename T>
struct Forward {
  const T* x;
  const T* weight;
  const T* bias;
  int64_t width;
  float eps;
  T* y;
  float* statistics;
};

template <typename T>
void forward_rows(const Forward<T>& p, int64_t begin, int64_t end) {
  const FloatTag d;
  for (int64_t r = begin; r < end; ++r) {
    const T* x = p.x + r * p.width;
    T* y = p.y + r * p.width;
    float* statistics = p.statistics + 2 * r;
    row_statistics(x, p.width, p.eps, statistics);
    const auto mean = hn::Set(d, statistics[0]);
    const auto scale = hn::Set(d, statistics[1]);
    for_each_vector(p.width, [&](int64_t i, size_t count) HWY_ATTR {
      const auto n = hn::Mul(hn::Sub(load(d, x + i, count), mean), scale);
      store(
          d, hn::MulAdd(n, load(d, p.weight + i, count), load(d, p.bias + i, count)), y + i, count);
    });
  }
}

template <typename T>
struct Backward {
  const T* dy;
  const T* x;
  const T* weight;
  const float* statistics;
  const T* add_to; // or null
  int64_t width;
  T* dx;
};

// With n the normalised row and g = dy * weight: dx = rstd * (g - mean(g) - n * mean(g * n)),
// dweight = sum over rows of dy * n, dbias that of dy.
template <typename T>
void backward_rows(
    const Backward<T>& p,
    int64_t begin,
    int64_t end,
    float* grad_weight,
    float* grad_bias) {
  const FloatTag d;
  // Read once: for all that the compiler knows, what is stored could lie over them.
  const T* const weight = p.weight;
  const T* const add_to = p.add_to;
  for (int64_t r = begin; r < end; ++r) {
    const T* dy = p.dy + r * p.width;
    const T* x = p.x + r * p.width;
    const auto mean = hn::Set(d, p.statistics[2 * r]);
    const auto scale = hn::Set(d, p.statistics[2 * r + 1]);
    auto sum = hn::Zero(d);
    auto dot = hn::Zero(d);
    for_each_vector(p.width, [&](int64_t i, size_t count) HWY_ATTR {
      // beyond `count` g is zero, since dy is
      const auto g = hn::Mul(load(d, dy + i, count), load(d, weight + i, count));
      sum = hn::Add(sum, g);
      dot = hn::MulAdd(g, hn::Mul(hn::Sub(load(d, x + i, count), mean), scale), dot);
    });
    const auto width = static_cast<float>(p.width);
    const auto mean_g = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, sum)) / width);
    const auto mean_gn = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, dot)) / width);
    for_each_vector(p.width, [&](int64_t i, size_t count) HWY_ATTR {
      const auto upstream = load(d, dy + i, count);
      const auto n = hn::Mul(hn::Sub(load(d, x + i, count), mean), scale);
      const auto g = hn::Mul(upstream, load(d, weight + i, count));
      auto result = hn::Mul(scale, hn::NegMulAdd(n, mean_gn, hn::Sub(g, mean_g)));
      if (add_to != nullptr) {
        result = hn::Add(result, load(d, add_to + r * p.width + i, count));
      }
      store(d, result, p.dx + r * p.width + i, count);
      if (grad_weight != nullptr) {
        store(d, hn::MulAdd(upstream, n, load(d, grad_weight + i, count)), grad_weight + i, count);
        store(d, hn::Add(upstream, load(d, grad_bias + i, count)), grad_bias + i, count);
      }
    });
  }
}

void layer_norm_forward_fast(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps,
    const LayerNormOutput& output) {
  with_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const Forward<T> problem{
        .x = x.const_data_ptr<T>(),
        .weight = weight.const_data_ptr<T>(),
        .bias = bias.const_data_ptr<T>(),
        .width = x.size(1),
        .eps = static_cast<float>(eps),
        .y = output.y.data_ptr<T>(),
        .statistics = output.statistics.data_ptr<float>()};
    at::parallel_for(
        0, x.size(0), 16, [&](int64_t begin, int64_t end) { forward_rows(problem, begin, end); });
  });
}

// Each group of rows adds into its own rows of `partials`.
void layer_norm_backward_fast(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& statistics,
    const at::Tensor& add_to,
    const at::Tensor& dx,
    const RowGroups& groups,
    const at::Tensor& partials) {
  with_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const Backward<T> problem{
        .dy = dy.const_data_ptr<T>(),
        .x = x.const_data_ptr<T>(),
        .weight = weight.const_data_ptr<T>(),
        .statistics = statistics.const_data_ptr<float>(),
        .add_to = add_to.defined() ? add_to.const_data_ptr<T>() : nullptr,
        .width = x.size(1),
        .dx = dx.data_ptr<T>()};
    float* sums = partials.size(2) > 0 ? partials.data_ptr<float>() : nullptr;
    groups.for_each([&](int64_t group, int64_t begin, int64_t end) {
      float* own = sums == nullptr ? nullptr : sums + 2 * group * problem.width;
      backward_rows(problem, begin, end, own, own == nullptr ? nullptr : own + problem.width);
    });
  });
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {

HWY_EXPORT(layer_norm_forward_fast);
HWY_EXPORT(layer_norm_backward_fast);

void check_arguments(const at::Tensor& x, const at::Tensor& weight) {
  check(
      x.dim() == 2 && weight.dim() == 1 && x.size(1) == weight.size(0) &&
          x.scalar_type() == weight.scalar_type(),
      "layer_norm: x has {} elements of {}, a parameter {} of {}",
      x.numel(),
      c10::toString(x.scalar_type()),
      weight.numel(),
      c10::toString(weight.scalar_type()));
}

bool has_fast_path(const at::Tensor& x) {
  return x.is_cpu() && is_fast_dtype(x.scalar_type());
}

at::Tensor normalised(const at::Tensor& x, const at::Tensor& statistics) {
  return (x.to(statistics.scalar_type()) - statistics.narrow(1, 0, 1)) * statistics.narrow(1, 1, 1);
}

LayerNormOutput forward_fallback(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps) {
  const at::Tensor wide = x.to(statistics_dtype(x));
  const at::Tensor mean = at::mean(wide, {-1});
  const at::Tensor centred = wide - mean.unsqueeze(1);
  const at::Tensor statistics =
      at::stack({mean, at::rsqrt(at::mean(centred * centred, {-1}) + eps)}, 1);
  const at::Tensor y = normalised(x, statistics) * weight.to(wide.scalar_type()) + bias;
  return {y.to(x.scalar_type()), statistics};
}

at::Tensor backward_fallback(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& statistics,
    const at::Tensor& grad_weight,
    const at::Tensor& grad_bias,
    const at::Tensor& add_to) {
  const auto wide = statistics_dtype(x);
  const at::Tensor n = normalised(x, statistics);
  const at::Tensor g = dy.to(wide) * weight.to(wide);
  at::Tensor dx = statistics.narrow(1, 1, 1) *
      (g - at::mean(g, {-1}, /*keepdim=*/true) - n * at::mean(g * n, {-1}, /*keepdim=*/true));
  if (add_to.defined()) {
    dx = dx + add_to.to(wide);
  }
  if (grad_weight.defined()) {
    grad_weight.add_((dy.to(wide) * n).sum(0));
  }
  if (grad_bias.defined()) {
    grad_bias.add_(dy.to(wide).sum(0));
  }
  return dx.to(dy.scalar_type());
}

} // namespace

LayerNormOutput layer_norm_forward(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps) {
  check_arguments(x, weight);
  check_arguments(x, bias);
  if (!has_fast_path(x)) {
    return forward_fallback(x, weight, bias, eps);
  }
  const at::Tensor source = x.contiguous();
  LayerNormOutput output{
      at::empty_like(source), at::empty({x.size(0), 2}, x.options().dtype(at::kFloat))};
  HWY_DYNAMIC_DISPATCH(layer_norm_forward_fast)
  (source, weight.contiguous(), bias.contiguous(), eps, output);
  return output;
}

at::Tensor layer_norm_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& statistics,
    const at::Tensor& grad_weight,
    const at::Tensor& grad_bias,
    const at::Tensor& add_to) {
  check_arguments(x, weight);
  const auto fits = [&](const at::Tensor& gradient) {
    return !gradient.defined() || gradient.sizes() == weight.sizes();
  };
  check(
      dy.sizes() == x.sizes() && dy.scalar_type() == x.scalar_type() &&
          statistics.numel() == 2 * x.size(0) &&
          (!add_to.defined() || add_to.sizes() == x.sizes()) && fits(grad_weight) &&
          fits(grad_bias),
      "layer_norm_backward: an argument does not fit x [{}, {}]",
      x.size(0),
      x.size(1));
  if (!has_fast_path(x)) {
    return backward_fallback(dy, x, weight, statistics, grad_weight, grad_bias, add_to);
  }
  const at::Tensor upstream = dy.contiguous();
  const RowGroups groups(x.size(0));
  const bool trained = grad_weight.defined() || grad_bias.defined();
  const at::Tensor partials =
      at::zeros({groups.count(), 2, trained ? x.size(1) : 0}, x.options().dtype(at::kFloat));
  at::Tensor dx = at::empty_like(upstream);
  HWY_DYNAMIC_DISPATCH(layer_norm_backward_fast)
  (upstream,
   x.contiguous(),
   weight.contiguous(),
   statistics,
   add_to.defined() ? add_to.contiguous() : add_to,
   dx,
   groups,
   partials);
  add_in_order(grad_weight, partials.select(1, 0));
  add_in_order(grad_bias, partials.select(1, 1));
  return dx;
}

} // namespace palimpsest::kernels
#endif
