#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/activation.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/activation.h>
#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <hwy/contrib/math/math-inl.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

// 1 / (1 + exp(-v)); the exponent is kept below overflow.
HWY_INLINE FloatVector sigmoid(FloatTag d, FloatVector v) {
  const auto one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, hn::Exp(d, hn::Min(hn::Neg(v), hn::Set(d, 88.0F)))));
}

struct ValueAndSlope {
  FloatVector value;
  FloatVector slope;
};

struct Silu {
  // s = sigmoid(v): v s, with slope s (1 + v (1 - s)).
  static HWY_INLINE ValueAndSlope evaluate(FloatTag d, FloatVector v) {
    const auto one = hn::Set(d, 1.0F);
    const auto s = sigmoid(d, v);
    return {hn::Mul(v, s), hn::Mul(s, hn::MulAdd(v, hn::Sub(one, s), one))};
  }
};

struct GeluTanh {
  // (1 + tanh u) / 2 = sigmoid(2 u) with u = sqrt(2/pi) (v + 0.044715 v^3).
  static HWY_INLINE ValueAndSlope evaluate(FloatTag d, FloatVector v) {
    constexpr float kTwice = 1.5957691216057308F; // 2 sqrt(2/pi)
    const auto one = hn::Set(d, 1.0F);
    const auto square = hn::Mul(v, v);
    const auto inner =
        hn::Mul(v, hn::MulAdd(hn::Set(d, kTwice * 0.044715F), square, hn::Set(d, kTwice)));
    const auto inner_slope =
        hn::MulAdd(hn::Set(d, kTwice * 3 * 0.044715F), square, hn::Set(d, kTwice));
    const auto s = sigmoid(d, inner);
    const auto bend = hn::Mul(hn::Mul(v, hn::Sub(one, s)), inner_slope);
    return {hn::Mul(v, s), hn::Mul(s, hn::Add(one, bend))};
  }
};

template <typename Function, typename T>
void glu_row(const T* gate, const T* up, int64_t width, T* output) {
  const FloatTag d;
  for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
    const auto f = Function::evaluate(d, load(d, gate + i, count));
    store(d, hn::Mul(f.value, load(d, up + i, count)), output + i, count);
  });
}

template <typename Function, typename T>
void glu_backward_row(
    const T* doutput,
    const T* gate,
    const T* up,
    int64_t width,
    T* dgate,
    T* dup,
    T* output) {
  const FloatTag d;
  for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
    const auto f = Function::evaluate(d, load(d, gate + i, count));
    const auto factor = load(d, up + i, count);
    const auto upstream = load(d, doutput + i, count);
    store(d, hn::Mul(hn::Mul(upstream, factor), f.slope), dgate + i, count);
    store(d, hn::Mul(upstream, f.value), dup + i, count);
    if (output != nullptr) {
      store(d, hn::Mul(f.value, factor), output + i, count);
    }
  });
}

template <typename F>
void with_function(Activation activation, F&& f) {
  activation == Activation::kSilu ? f(Silu{}) : f(GeluTanh{});
}

void glu_forward_fast(const at::Tensor& gate_up, Activation activation, const at::Tensor& output) {
  const int64_t width = output.size(1);
  with_type(gate_up.scalar_type(), [&](auto type) {
    using T = decltype(type);
    with_function(activation, [&](auto function) {
      at::parallel_for(0, output.size(0), 8, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const T* gate = gate_up.const_data_ptr<T>() + 2 * r * width;
          glu_row<decltype(function)>(gate, gate + width, width, output.data_ptr<T>() + r * width);
        }
      });
    });
  });
}

void glu_backward_fast(
    const at::Tensor& doutput,
    const at::Tensor& gate_up,
    Activation activation,
    const at::Tensor& dgate_up,
    const at::Tensor& output) {
  const int64_t width = doutput.size(1);
  with_type(gate_up.scalar_type(), [&](auto type) {
    using T = decltype(type);
    with_function(activation, [&](auto function) {
      at::parallel_for(0, doutput.size(0), 8, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const T* gate = gate_up.const_data_ptr<T>() + 2 * r * width;
          T* dgate = dgate_up.data_ptr<T>() + 2 * r * width;
          glu_backward_row<decltype(function)>(
              doutput.const_data_ptr<T>() + r * width,
              gate,
              gate + width,
              width,
              dgate,
              dgate + width,
              output.defined() ? output.data_ptr<T>() + r * width : nullptr);
        }
      });
    });
  });
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {

HWY_EXPORT(glu_forward_fast);
HWY_EXPORT(glu_backward_fast);

bool has_fast_glu(const at::Tensor& gate_up, Activation activation) {
  return is_fast(gate_up) &&
      (activation == Activation::kSilu || activation == Activation::kGeluTanh);
}

void check_gate_up(const at::Tensor& gate_up) {
  check(
      gate_up.dim() == 2 && gate_up.size(1) % 2 == 0,
      "glu: gate_up needs two dimensions and an even width, and has {} and {}",
      gate_up.dim(),
      gate_up.size(-1));
}

} // namespace

at::Tensor activation_forward(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kGeluErf:
      return at::gelu(x);
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kTanh:
      return at::tanh(x);
  }
  throw InternalError("unknown activation");
}

void activation_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    Activation activation,
    at::Tensor dx) {
  switch (activation) {
    case Activation::kSilu:
      at::silu_backward_out(dx, dy, x);
      return;
    case Activation::kGeluTanh:
      at::gelu_backward_out(dx, dy, x, "tanh");
      return;
    case Activation::kGeluErf:
      at::gelu_backward_out(dx, dy, x);
      return;
    case Activation::kRelu:
      at::threshold_backward_out(dx, dy, x, 0);
      return;
    case Activation::kTanh:
      at::tanh_backward_out(dx, dy, at::tanh(x));
      return;
  }
  throw InternalError("unknown activation");
}

at::Tensor glu_forward(const at::Tensor& gate_up, Activation activation) {
  check_gate_up(gate_up);
  const int64_t width = gate_up.size(1) / 2;
  if (!has_fast_glu(gate_up, activation)) {
    return activation_forward(gate_up.narrow(1, 0, width), activation) *
        gate_up.narrow(1, width, width);
  }
  at::Tensor output = at::empty({gate_up.size(0), width}, gate_up.options());
  HWY_DYNAMIC_DISPATCH(glu_forward_fast)(gate_up, activation, output);
  return output;
}

at::Tensor glu_backward(
    const at::Tensor& doutput,
    const at::Tensor& gate_up,
    Activation activation,
    const at::Tensor& output) {
  check_gate_up(gate_up);
  const int64_t width = gate_up.size(1) / 2;
  check(
      doutput.sizes() == at::IntArrayRef({gate_up.size(0), width}) &&
          doutput.scalar_type() == gate_up.scalar_type() &&
          (!output.defined() || output.sizes() == doutput.sizes()),
      "glu_backward: a tensor of {} elements for gate_up of {}",
      doutput.numel(),
      gate_up.numel());
  if (!has_fast_glu(gate_up, activation) || (output.defined() && !is_fast(output))) {
    const at::Tensor gate = gate_up.narrow(1, 0, width);
    const at::Tensor up = gate_up.narrow(1, width, width);
    const at::Tensor activated = activation_forward(gate, activation);
    if (output.defined()) {
      output.copy_(activated * up);
    }
    at::Tensor dgate_up = at::empty_like(gate_up);
    activation_backward(doutput * up, gate, activation, dgate_up.narrow(1, 0, width));
    dgate_up.narrow(1, width, width).copy_(doutput * activated);
    return dgate_up;
  }
  at::Tensor dgate_up = at::empty_like(gate_up);
  HWY_DYNAMIC_DISPATCH(glu_backward_fast)
  (doutput.contiguous(), gate_up, activation, dgate_up, output);
  return dgate_up;
}

} // namespace palimpsest::kernels
#endif
