#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/optimizer_math.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/optimizer_math.h>
#include <palimpsest/core/kernels/philox-inl.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace palimpsest::kernels {
#ifndef PALIMPSEST_UPDATE_BUFFERS_
#define PALIMPSEST_UPDATE_BUFFERS_

// What a buffer's values are rounded by as they are stored.
struct RoundingStream {
  PhiloxKey key;
  uint32_t state; ///< tells the buffers of an element apart
  int64_t first; ///< the buffer's first element in its unit
};

#endif
} // namespace palimpsest::kernels

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

constexpr int64_t kGrain = 16384;
constexpr int64_t kBlock = 256; // elements at a time: they stay in the first-level cache

// Up with the probability of what is cut off, so that the expected value is exact. Infinity and
// numbers that are bf16 already stay.
HWY_INLINE void store_stochastic(
    FloatTag d,
    FloatVector v,
    hn::Vec<WordTag> random,
    at::BFloat16* p,
    size_t count) {
  const WordTag words;
  const auto bits = hn::Add(hn::BitCast(words, v), hn::ShiftRight<16>(random));
  const auto cut = hn::BitCast(d, hn::And(bits, hn::Set(words, 0xFFFF0000U)));
  store(d, hn::IfThenElse(hn::IsNaN(v), v, cut), p, count);
}

// A buffer as blocks of fp32 numbers: in its place where it is fp32, else widened.
class Blocks {
 public:
  explicit Blocks(const at::Tensor& buffer)
      : data_(buffer.defined() ? buffer.data_ptr() : nullptr),
        dtype_(buffer.defined() ? buffer.scalar_type() : at::kFloat) {}

  bool present() const {
    return data_ != nullptr;
  }

  // Elements [first, first + count); `keep`: what they hold matters.
  float* open(int64_t first, int64_t count, bool keep = true) {
    if (dtype_ == at::kFloat) {
      return static_cast<float*>(data_) + first;
    }
    if (keep) {
      with_type(dtype_, [&](auto type) {
        const auto* source = static_cast<const decltype(type)*>(data_) + first;
        for_each_vector(count, [&](int64_t i, size_t lanes) HWY_ATTR {
          const FloatTag d;
          store(d, load(d, source + i, lanes), room_ + i, lanes);
        });
      });
    }
    return room_;
  }

  // Stores what open() gave, rounded by the stream's words.
  void close(int64_t first, int64_t count, const RoundingStream& stream) {
    if (dtype_ == at::kFloat) {
      return;
    }
    auto* target = static_cast<at::BFloat16*>(data_) + first;
    const int64_t begin = stream.first + first;
    const int64_t skip = begin % 4;
    HWY_ALIGN uint32_t words[kBlock + 4 + kWordPadding];
    philox_words(
        stream.key,
        {0, stream.state, 0, 0},
        static_cast<uint32_t>(begin / 4),
        (skip + count + 3) / 4,
        words);
    for_each_vector(count, [&](int64_t i, size_t lanes) HWY_ATTR {
      const FloatTag d;
      const auto random = hn::LoadU(WordTag(), words + skip + i);
      store_stochastic(d, load(d, room_ + i, lanes), random, target + i, lanes);
    });
  }

 private:
  void* data_;
  at::ScalarType dtype_;
  HWY_ALIGN float room_[kBlock];
};

// To the nearest, ties to even.
void copy_block(const float* values, const at::Tensor& copy, int64_t first, int64_t count) {
  with_type(copy.scalar_type(), [&](auto type) {
    auto* target = copy.data_ptr<decltype(type)>() + first;
    for_each_vector(count, [&](int64_t i, size_t lanes) HWY_ATTR {
      const FloatTag d;
      store(d, load(d, values + i, lanes), target + i, lanes);
    });
  });
}

void adamw_block(
    float* parameters,
    const float* gradients,
    float* exp_avg,
    float* exp_avg_sq,
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
    store(d, m, exp_avg + i, count);
    store(d, v, exp_avg_sq + i, count);
    store(d, hn::NegMulAdd(step_size, hn::Div(m, denominator), decayed), parameters + i, count);
  });
}

void sgd_block(
    float* parameters,
    const float* gradients,
    float* momentum_buffer,
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
    store(d, hn::NegMulAdd(rate, direction, p), parameters + i, count);
  });
}

// Calls update(first, count) for blocks of all elements, on all threads.
template <typename MakeUpdate>
void for_each_block(int64_t elements, const MakeUpdate& make_update) {
  at::parallel_for(0, elements, kGrain, [&](int64_t begin, int64_t end) {
    auto update = make_update();
    for (int64_t first = begin; first < end; first += kBlock) {
      update(first, std::min(kBlock, end - first));
    }
  });
}

void adamw_fast(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& exp_avg,
    const at::Tensor& exp_avg_sq,
    const AdamWStep& step,
    const at::Tensor& copy,
    const RoundingStream& rounding) {
  for_each_block(parameters.numel(), [&] {
    return [&,
            p = Blocks(parameters),
            g = Blocks(gradients),
            m = Blocks(exp_avg),
            v = Blocks(exp_avg_sq)](int64_t first, int64_t count) mutable {
      float* updated = p.open(first, count);
      adamw_block(
          updated, g.open(first, count), m.open(first, count), v.open(first, count), count, step);
      RoundingStream stream = rounding;
      p.close(first, count, stream);
      stream.state = 1;
      m.close(first, count, stream);
      stream.state = 2;
      v.close(first, count, stream);
      if (copy.defined()) {
        copy_block(updated, copy, first, count);
      }
    };
  });
}

void sgd_fast(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& momentum_buffer,
    const SgdStep& step,
    const at::Tensor& copy,
    const RoundingStream& rounding) {
  for_each_block(parameters.numel(), [&] {
    return [&, p = Blocks(parameters), g = Blocks(gradients), m = Blocks(momentum_buffer)](
               int64_t first, int64_t count) mutable {
      float* updated = p.open(first, count);
      float* momentum = m.present() ? m.open(first, count, !step.first) : nullptr;
      sgd_block(updated, g.open(first, count), momentum, count, step);
      RoundingStream stream = rounding;
      p.close(first, count, stream);
      if (m.present()) {
        stream.state = 1;
        m.close(first, count, stream);
      }
      if (copy.defined()) {
        copy_block(updated, copy, first, count);
      }
    };
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

bool is_state(const at::Tensor& tensor) {
  return !tensor.defined() ||
      (is_fast(tensor) &&
       (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16));
}

/// Whether blocks can be made of all of them.
bool are_states(std::initializer_list<at::Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), is_state);
}

/// Elsewhere nothing is rounded.
void check_wide(std::initializer_list<at::Tensor> states) {
  for (const at::Tensor& state : states) {
    check(
        !state.defined() || c10::elementSize(state.scalar_type()) >= sizeof(float),
        "optimizer update: {} is rounded stochastically in contiguous buffers on the CPU alone",
        c10::toString(state.scalar_type()));
  }
}

RoundingStream rounding_stream(const StochasticRounding& rounding, int64_t step, int64_t elements) {
  constexpr uint32_t kPurpose = 0xFFFF'FFFFU; // no dropout's call has this number
  check(
      (rounding.first + elements) / 4 <= int64_t{0xFFFF'FFFF},
      "optimizer update: element {} is beyond what can be rounded stochastically",
      rounding.first + elements);
  const auto updates = static_cast<uint64_t>(step);
  const auto mixed = philox4x32_10(
      {static_cast<uint32_t>(updates),
       static_cast<uint32_t>(updates >> 32),
       rounding.unit,
       kPurpose},
      {static_cast<uint32_t>(rounding.seed), static_cast<uint32_t>(rounding.seed >> 32)});
  return {.key = {mixed[0], mixed[1]}, .state = 0, .first = rounding.first};
}

void copy_out(const at::Tensor& parameters, const at::Tensor& copy) {
  if (copy.defined()) {
    copy.copy_(parameters);
  }
}

} // namespace

void adamw_update(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& exp_avg,
    const at::Tensor& exp_avg_sq,
    const AdamWStep& step,
    const at::Tensor& copy) {
  check_state(parameters, gradients, "the gradient");
  check_state(parameters, exp_avg, "the first moment");
  check_state(parameters, exp_avg_sq, "the second moment");
  check(step.step >= 1, "adamw_update: step {} is not counted from 1", step.step);
  if (copy.defined()) {
    check_state(parameters, copy, "the copy");
  }
  if (are_states({parameters, gradients, exp_avg, exp_avg_sq})) {
    HWY_DYNAMIC_DISPATCH(adamw_fast)
    (parameters,
     gradients,
     exp_avg,
     exp_avg_sq,
     step,
     copy,
     rounding_stream(step.rounding, step.step, parameters.numel()));
    return;
  }
  check_wide({parameters, exp_avg, exp_avg_sq});
  const at::Tensor g = gradients.to(parameters.scalar_type()) * step.gradient_scale;
  exp_avg.add_((g - exp_avg) * (1.0 - step.beta1));
  exp_avg_sq.mul_(step.beta2).add_(g * g * (1.0 - step.beta2));
  const auto count = static_cast<double>(step.step);
  const double root_correction2 = std::sqrt(1.0 - std::pow(step.beta2, count));
  const double step_size = step.learning_rate / (1.0 - std::pow(step.beta1, count));
  parameters.mul_(1.0 - step.learning_rate * step.weight_decay);
  parameters.sub_(exp_avg / (exp_avg_sq.sqrt() / root_correction2 + step.eps) * step_size);
  copy_out(parameters, copy);
}

void sgd_momentum_update(
    const at::Tensor& parameters,
    const at::Tensor& gradients,
    const at::Tensor& momentum_buffer,
    const SgdStep& step,
    const at::Tensor& copy) {
  check_state(parameters, gradients, "the gradient");
  check(
      momentum_buffer.defined() || step.momentum == 0,
      "sgd_momentum_update: momentum {} needs a buffer",
      step.momentum);
  if (momentum_buffer.defined()) {
    check_state(parameters, momentum_buffer, "the momentum");
  }
  if (copy.defined()) {
    check_state(parameters, copy, "the copy");
  }
  if (are_states({parameters, gradients, momentum_buffer})) {
    HWY_DYNAMIC_DISPATCH(sgd_fast)
    (parameters,
     gradients,
     momentum_buffer,
     step,
     copy,
     rounding_stream(step.rounding, step.step, parameters.numel()));
    return;
  }
  check_wide({parameters, momentum_buffer});
  at::Tensor direction =
      gradients.to(parameters.scalar_type()) * step.gradient_scale + parameters * step.weight_decay;
  if (momentum_buffer.defined()) {
    if (!step.first) {
      direction = direction + momentum_buffer * step.momentum;
    }
    momentum_buffer.copy_(direction);
  }
  parameters.sub_(direction * step.learning_rate);
  copy_out(parameters, copy);
}

} // namespace palimpsest::kernels
#endif
