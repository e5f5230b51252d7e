#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/cross_entropy.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/cross_entropy.h>
#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/simd-inl.h>
#include <palimpsest/core/kernels/softmax-inl.h>

#include <ATen/Parallel.h>
#include <ATen/ops/log_softmax.h>

#include <cmath>
#include <numeric>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

// Sum of exp(row - top); sums of one block are folded in double.
template <typename T>
double sum_of_exponentials(const T* row, int64_t width, float top) {
  constexpr int64_t kBlock = 4096;
  const FloatTag d;
  const auto shift = hn::Set(d, top);
  double total = 0;
  for (int64_t first = 0; first < width; first += kBlock) {
    auto sum = hn::Zero(d);
    for_each_vector(std::min(kBlock, width - first), [&](int64_t i, size_t count) HWY_ATTR {
      const auto e = hn::Exp(d, hn::Sub(load(d, row + first + i, count), shift));
      sum = hn::Add(sum, fill_rest(d, e, count, 0.0F));
    });
    total += hn::GetLane(hn::SumOfLanes(d, sum));
  }
  return total;
}

template <typename T>
void write_gradient(T* row, int64_t width, int64_t label, float top, double sum, double scale) {
  const FloatTag d;
  const auto shift = hn::Set(d, top);
  const auto factor = hn::Set(d, static_cast<float>(scale / sum));
  const float at_label = std::exp(static_cast<float>(row[label]) - top);
  for_each_vector(width, [&](int64_t i, size_t count) HWY_ATTR {
    const auto e = hn::Exp(d, hn::Sub(load(d, row + i, count), shift));
    store(d, hn::Mul(e, factor), row + i, count);
  });
  row[label] = static_cast<float>((at_label / sum - 1.0) * scale);
}

void cross_entropy_fast(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const double* scale,
    int64_t ignore_index,
    double* losses) {
  const int64_t width = logits.size(1);
  const int64_t* label_of = labels.const_data_ptr<int64_t>();
  with_type(logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* row = logits.data_ptr<T>() + r * width;
        const int64_t label = label_of[r];
        if (label == ignore_index) {
          losses[r] = 0;
          if (scale != nullptr) {
            std::fill(row, row + width, T(0));
          }
          continue;
        }
        const float top = largest(row, width);
        const double sum = sum_of_exponentials(row, width, top);
        losses[r] = std::log(sum) + top - static_cast<double>(row[label]);
        if (scale != nullptr) {
          write_gradient(row, width, label, top, sum, *scale);
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

HWY_EXPORT(cross_entropy_fast);

void check_labels(const at::Tensor& logits, const at::Tensor& labels, int64_t ignore_index) {
  check(
      logits.dim() == 2 && labels.dim() == 1 && labels.size(0) == logits.size(0) &&
          labels.scalar_type() == at::kLong,
      "cross_entropy: {} labels of {} for {} rows of logits",
      labels.numel(),
      c10::toString(labels.scalar_type()),
      logits.size(0));
  const at::Tensor on_host = labels.cpu().contiguous();
  for (int64_t r = 0; r < on_host.numel(); ++r) {
    const int64_t label = on_host.const_data_ptr<int64_t>()[r];
    check(
        label == ignore_index || (label >= 0 && label < logits.size(1)),
        "cross_entropy: label {} in row {} is outside the vocabulary of {}",
        label,
        r,
        logits.size(1));
  }
}

double fallback(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const double* scale,
    int64_t ignore_index) {
  const auto wide = c10::promoteTypes(logits.scalar_type(), at::kFloat);
  const at::Tensor kept = labels.ne(ignore_index);
  const at::Tensor index = labels.masked_fill(kept.logical_not(), 0).unsqueeze(1);
  const at::Tensor log_probabilities = at::log_softmax(logits, 1, wide);
  const at::Tensor losses = log_probabilities.gather(1, index).squeeze(1).to(at::kDouble);
  const double sum = -losses.mul(kept).sum().item<double>();
  if (scale != nullptr) {
    at::Tensor gradient = log_probabilities.exp();
    gradient.scatter_add_(1, index, gradient.new_full({1, 1}, -1).expand_as(index));
    logits.copy_(gradient.mul_(*scale).mul_(kept.unsqueeze(1)));
  }
  return sum;
}

double run(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const double* scale,
    int64_t ignore_index) {
  check_labels(logits, labels, ignore_index);
  if (!is_fast(logits) || !labels.is_cpu()) {
    return fallback(logits, labels, scale, ignore_index);
  }
  std::vector<double> losses(logits.size(0));
  HWY_DYNAMIC_DISPATCH(cross_entropy_fast)
  (logits, labels.contiguous(), scale, ignore_index, losses.data());
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

} // namespace

double cross_entropy_forward_backward_(
    const at::Tensor& logits,
    const at::Tensor& labels,
    double scale,
    int64_t ignore_index) {
  return run(logits, labels, &scale, ignore_index);
}

double cross_entropy_forward(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t ignore_index) {
  return run(logits, labels, nullptr, ignore_index);
}

} // namespace palimpsest::kernels
#endif
