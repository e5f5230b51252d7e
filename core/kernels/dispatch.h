#pragma once

// Which tensors take the fast path, and the call with the tensor's C++ type. Private to
// core/kernels.

#include <ATen/core/Tensor.h>
#include <palimpsest/core/base/error.h>

namespace palimpsest::kernels {

inline bool is_fast_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

/// CPU, fp32, bf16 or fp16, contiguous.
inline bool is_fast(const at::Tensor& tensor) {
  return tensor.is_cpu() && is_fast_dtype(tensor.scalar_type()) && tensor.is_contiguous();
}

/// f(T{}) with T = float, at::BFloat16 or at::Half, the dtype given.
template <typename F>
decltype(auto) with_type(at::ScalarType dtype, F&& f) {
  check(is_fast_dtype(dtype), "no vector kernel for {}", c10::toString(dtype));
  if (dtype == at::kFloat) {
    return f(float{});
  }
  if (dtype == at::kHalf) {
    return f(at::Half{});
  }
  return f(at::BFloat16{});
}

} // namespace palimpsest::kernels
