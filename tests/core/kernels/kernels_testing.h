#pragma once

// What the kernels' tests share: awkward sizes, random tensors, one measure of difference.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace palimpsest::kernels {

/// Largest absolute difference over the largest absolute value expected; 0 for two empty tensors,
/// NaN where one is NaN.
inline double difference(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_EQ(actual.sizes(), expected.sizes());
  if (actual.numel() == 0) {
    return 0;
  }
  const at::Tensor wide = expected.to(at::kDouble);
  const double size = wide.abs().max().item<double>();
  return (actual.to(at::kDouble) - wide).abs().max().item<double>() / std::max(size, 1e-30);
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.equal(b);
}

/// Standard normal values in fp64 that `dtype` can represent, so that a reference sees the kernel's
/// very inputs.
inline at::Tensor sample(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, at::kDouble).to(dtype).to(at::kDouble);
}

/// The same, ready to collect a gradient.
inline at::Tensor sample_leaf(at::IntArrayRef shape, at::ScalarType dtype) {
  return sample(shape, dtype).requires_grad_(true);
}

/// `tensor` as a view at an odd element offset of a flat buffer, as parameters lie in theirs.
inline at::Tensor at_odd_offset(const at::Tensor& tensor) {
  const at::Tensor flat = at::zeros({tensor.numel() + 3}, tensor.options());
  const at::Tensor view = flat.narrow(0, 3, tensor.numel()).view(tensor.sizes());
  view.copy_(tensor);
  return view;
}

/// A few ulps of sums in the dtype.
inline double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 3e-6 : dtype == at::kHalf ? 1e-3 : 8e-3;
}

/// Runs f with 1 and with 2 threads and restores the setting.
template <typename F>
void with_thread_counts(F&& f) {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    f(threads);
  }
  at::set_num_threads(before);
}

/// The dtypes of the fast paths.
class KernelsTest : public testing::TestWithParam<at::ScalarType> {};

inline std::string dtype_name(const testing::TestParamInfo<at::ScalarType>& info) {
  return c10::toString(info.param);
}

#define PALIMPSEST_EACH_DTYPE(SUITE) \
  INSTANTIATE_TEST_SUITE_P(          \
      Dtypes, SUITE, testing::Values(at::kFloat, at::kBFloat16, at::kHalf), dtype_name)

} // namespace palimpsest::kernels
