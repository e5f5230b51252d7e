#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/optimizer_math.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/optimizer_math.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

constexpr int64_t kGrain = 16384;

template <typename Gradient>
void adamw_range(
    float* parameters,
    const Gradient* gradients,
    float* exp_avg,
    float* exp_avg_sq,
    at::BFloat16* copy,
    int64_t elements,
    const AdamWStep& step) {
  const FloatTag d;
  const double correction1 = 1.0 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1.0 - std::pow(step.beta2, static_cast<double>(step.step));
  const auto set = [d](double value) HWY_ATTR { return hn::Set(d, static_cast<float>(value)); };
  const auto scale = set(step.gradient_scale);
  const auto shrink = set(1.0 - step.learning_rate * step.weight_decay);
  const auto one_minus_beta1 = set(1.0 - step.beta1);
  const auto beta2 = set(step.beta2);
  const auto one_minus_beta2 = set(1.0 - step.beta2);
  const auto root_correction2 = set(std::sqrt(correction2));
  const auto eps = set(step.eps);
  const auto step_size = set(step.learning_rate / correction1);
  for_each_vector(elements, [&](int64_t i, size_t count) HWY_ATTR {
    const auto g = hn::Mul(load(d, gradients + i, count), scale);
    auto m = load(d, exp_avg + i, count);
    auto v = load(d, exp_avg_sq + i, count);
    m = hn::MulAdd(hn::Sub(g, m), one_minus_beta1, m);
    v = hn::MulAdd(hn::Mul(g, g), one_minus_beta2, hn::Mul(v, beta2));
    const auto denominator = hn::Add(hn::Div(hn::Sqrt(v), root_correction2), eps);
    const auto decayed = hn::Mul(load(d, parameters + i, count), shrink);
    const auto updated = hn::NegMulAdd(step_size, hn::Div(m, denominator), decayed);
    store(d, m, exp_avg + i, count);
    store(d, v, exp_avg_sq + i, count);
    store(d, updated, parameters + i, count);
    if (copy != nullptr) {
      store(d, updated, copy + i, count);
    }
  });
}

template <typename Gradient>
void sgd_range(
    float* parameters,
    const Gradient* gradients,
    float* momentum_buffer,
    at::BFloat16* copy,
    int64_t elements,
    const SgdStep& step) {
  const FloatTag d;
  const auto set = [d](double value) HWY_ATTR { return hn::Set(d, static_cast<float>(value)); };
  const auto scale = set(step.gradient_scale);
  const auto decay = set(step.weight_decay);
  const auto momentum = set(step.momentum);
  const auto rate = set(step.learning_rate);
  for_each_vector(elements, [&](int64_t i, size_t count) HWY_ATTR {
    const auto p = load(d, parameters + i, count);
    auto direction = hn::MulAdd(p, decay, hn::Mul(load(d, gradients + i, count), scale));
    if (momentum_buffer != nullptr) {
      if (!step.first) {
        direction = hn::MulAdd(load(d, momentum_buffer + i, count), momentum, direction);
      }
      store(d, direction, momentum_buffer + i, count);
    }
    const auto updated = hn::NegMulAdd(rate, direction, p);
    store(d, updated, parameters + i, count);
    if (copy != nullptr) {
      store(d, updated, copy + i, count);
    }
  });
}

at::BFloat16* copy_of(const at::Tensor& bf16_copy, int64_t first) {
  return bf16_copy.defined() ? bf16_copy.data_ptr<at::BFloat16>() + first : nullptr;
}

void adamw_fast(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& exp_avg,
    const at::Tensor& exp_avg_sq,
    const AdamWStep& step,
    const at::Tensor& bf16_copy) {
  with_type(gradients.scalar_type(), [&](auto type) {
    const auto* gradient = gradients.const_data_ptr<decltype(type)>();
    at::parallel_for(0, parameters.numel(), kGrain, [&](int64_t begin, int64_t end) {
      adamw_range(
          parameters.data_ptr<float>() + begin,
          gradient + begin,
          exp_avg.data_ptr<float>() + begin,
          exp_avg_sq.data_ptr<float>() + begin,
          copy_of(bf16_copy, begin),
          end - begin,
          step);
    });
  });
}

void sgd_fast(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& momentum_buffer,
    const SgdStep& step,
    const at::Tensor& bf16_copy) {
  with_type(gradients.scalar_type(), [&](auto type) {
    const auto* gradient = gradients.const_data_ptr<decltype(type)>();
    at::parallel_for(0, parameters.numel(), kGrain, [&](int64_t begin, int64_t end) {
      sgd_range(
          parameters.data_ptr<float>() + begin,
          gradient + begin,
          momentum_buffer.defined() ? momentum_buffer.data_ptr<float>() + begin : nullptr,
          copy_of(bf16_copy, begin),
          end - begin,
          step);
    });
  });
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {

HWY_EXPORT(adamw_fast);
HWY_EXPORT(sgd_fast);

void check_state(const at::Tensor& parameters, const at::Tensor& state, const char* name) {
  check(
      state.numel() == parameters.numel() && state.is_contiguous() && parameters.is_contiguous(),
      "optimizer update: {} has {} elements for {} parameters, or they are not contiguous",
      name,
      state.numel(),
      parameters.numel());
}

bool is_fast_fp32(const at::Tensor& tensor) {
  return is_fast(tensor) && tensor.scalar_type() == at::kFloat;
}

void copy_out(const at::Tensor& parameters, const at::Tensor& bf16_copy) {
  if (bf16_copy.defined()) {
    bf16_copy.copy_(parameters);
  }
}

} // namespace

void adamw_update(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& exp_avg,
    const at::Tensor& exp_avg_sq,
    const AdamWStep& step,
    const at::Tensor& bf16_copy) {
  check_state(parameters, gradients, "the gradient");
  check_state(parameters, exp_avg, "the first moment");
  check_state(parameters, exp_avg_sq, "the second moment");
  check(step.step >= 1, "adamw_update: step {} is not counted from 1", step.step);
  if (bf16_copy.defined()) {
    check_state(parameters, bf16_copy, "the bf16 copy");
  }
  if (is_fast_fp32(parameters) && is_fast(gradients) && is_fast_fp32(exp_avg) &&
      is_fast_fp32(exp_avg_sq)) {
    HWY_DYNAMIC_DISPATCH(adamw_fast)
    (parameters, gradients, exp_avg, exp_avg_sq, step, bf16_copy);
    return;
  }
  const at::Tensor g = gradients.to(parameters.scalar_type()) * step.gradient_scale;
  exp_avg.add_((g - exp_avg) * (1.0 - step.beta1));
  exp_avg_sq.mul_(step.beta2).add_(g * g * (1.0 - step.beta2));
  const auto count = static_cast<double>(step.step);
  const double root_correction2 = std::sqrt(1.0 - std::pow(step.beta2, count));
  const double step_size = step.learning_rate / (1.0 - std::pow(step.beta1, count));
  parameters.mul_(1.0 - step.learning_rate * step.weight_decay);
  parameters.sub_(exp_avg / (exp_avg_sq.sqrt() / root_correction2 + step.eps) * step_size);
  copy_out(parameters, bf16_copy);
}

void sgd_momentum_update(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& momentum_buffer,
    const SgdStep& step,
    const at::Tensor& bf16_copy) {
  check_state(parameters, gradients, "the gradient");
  check(
      momentum_buffer.defined() || step.momentum == 0,
      "sgd_momentum_update: momentum {} needs a buffer",
      step.momentum);
  if (momentum_buffer.defined()) {
    check_state(parameters, momentum_buffer, "the momentum");
  }
  if (bf16_copy.defined()) {
    check_state(parameters, bf16_copy, "the bf16 copy");
  }
  if (is_fast_fp32(parameters) && is_fast(gradients) &&
      (!momentum_buffer.defined() || is_fast_fp32(momentum_buffer))) {
    HWY_DYNAMIC_DISPATCH(sgd_fast)(parameters, gradients, momentum_buffer, step, bf16_copy);
    return;
  }
  at::Tensor direction =
      gradients.to(parameters.scalar_type()) * step.gradient_scale + parameters * step.weight_decay;
  if (momentum_buffer.defined()) {
    if (!step.first) {
      direction = direction + momentum_buffer * step.momentum;
    }
    momentum_buffer.copy_(direction);
  }
  parameters.sub_(direction * step.learning_rate);
  copy_out(parameters, bf16_copy);
}

} // namespace palimpsest::kernels
#endif
