#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/embedding.h>

#include <ATen/Parallel.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace palimpsest::kernels {

namespace {

void check_ids(const at::Tensor& ids, int64_t vocabulary) {
  check(
      ids.dim() == 1 && ids.scalar_type() == at::kLong,
      "embedding: ids have {} dimensions and dtype {}",
      ids.dim(),
      c10::toString(ids.scalar_type()));
  const at::Tensor on_host = ids.cpu().contiguous();
  for (int64_t n = 0; n < on_host.numel(); ++n) {
    const int64_t id = on_host.const_data_ptr<int64_t>()[n];
    check(
        id >= 0 && id < vocabulary,
        "embedding: id {} at position {} is outside the vocabulary of {}",
        id,
        n,
        vocabulary);
  }
}

// As transformers has it: the scale is a tensor of the dtype.
double rounded(double scale, at::ScalarType dtype) {
  return at::scalar_tensor(scale, at::TensorOptions(dtype)).item<double>();
}

// A thread owns columns and walks through all ids, so rows that repeat need no care and the work is
// even.
template <typename T>
void add_rows(
    const at::Tensor& ids,
    const at::Tensor& dy,
    const at::Tensor& grad_weight,
    float scale) {
  constexpr int64_t kColumns = 64;
  const int64_t width = dy.size(1);
  const int64_t* id_of = ids.const_data_ptr<int64_t>();
  const T* source = dy.const_data_ptr<T>();
  float* sums = grad_weight.data_ptr<float>();
  at::parallel_for(0, (width + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kColumns;
    const int64_t last = std::min(end * kColumns, width);
    for (int64_t n = 0; n < ids.numel(); ++n) {
      float* target = sums + id_of[n] * width;
      for (int64_t c = first; c < last; ++c) {
        target[c] += scale * static_cast<float>(source[n * width + c]);
      }
    }
  });
}

// The same into bf16: a row's sum over all its ids in fp32, rounded once with what it held.
template <typename T>
void add_row_sums(
    const at::Tensor& ids,
    const at::Tensor& dy,
    const at::Tensor& grad_weight,
    float scale) {
  constexpr int64_t kColumns = 64;
  const int64_t width = dy.size(1);
  const int64_t* id_of = ids.const_data_ptr<int64_t>();
  std::vector<int64_t> order(static_cast<size_t>(ids.numel())); // by id, then by place
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int64_t n) { return id_of[n]; });
  const T* source = dy.const_data_ptr<T>();
  auto* gradient = grad_weight.data_ptr<at::BFloat16>();
  at::parallel_for(0, (width + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kColumns; first < std::min(end * kColumns, width);
         first += kColumns) {
      const int64_t columns = std::min(kColumns, width - first);
      for (auto place = order.begin(); place != order.end();) {
        const int64_t id = id_of[*place];
        std::array<float, kColumns> sums{};
        for (; place != order.end() && id_of[*place] == id; ++place) {
          for (int64_t c = 0; c < columns; ++c) {
            sums[c] += scale * static_cast<float>(source[*place * width + first + c]);
          }
        }
        at::BFloat16* target = gradient + id * width + first;
        for (int64_t c = 0; c < columns; ++c) {
          target[c] = static_cast<float>(target[c]) + sums[c];
        }
      }
    }
  });
}

} // namespace

at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& weight, double scale) {
  check_ids(ids, weight.size(0));
  at::Tensor rows = at::index_select(weight, 0, ids);
  if (scale != 1) {
    rows.mul_(rounded(scale, weight.scalar_type()));
  }
  return rows;
}

void embedding_backward(
    const at::Tensor& ids,
    const at::Tensor& dy,
    const at::Tensor& grad_weight,
    double scale) {
  check_ids(ids, grad_weight.size(0));
  const double factor = scale == 1 ? 1 : rounded(scale, dy.scalar_type());
  check(
      dy.dim() == 2 && dy.size(0) == ids.numel() && dy.size(1) == grad_weight.size(1),
      "embedding_backward: dy has {} elements for {} ids of width {}",
      dy.numel(),
      ids.numel(),
      grad_weight.size(1));
  const at::ScalarType into = grad_weight.scalar_type();
  if (dy.is_cpu() && is_fast_dtype(dy.scalar_type()) && grad_weight.is_contiguous() &&
      (into == at::kFloat || into == at::kBFloat16)) {
    with_type(dy.scalar_type(), [&](auto type) {
      const auto add = into == at::kFloat ? add_rows<decltype(type)> : add_row_sums<decltype(type)>;
      add(ids.contiguous(), dy.contiguous(), grad_weight, static_cast<float>(factor));
    });
    return;
  }
  // By way of the host where the device's index_add_ is not deterministic.
  const at::Tensor sums = grad_weight.cpu();
  sums.index_add_(0, ids.cpu(), dy.cpu().to(sums.scalar_type()).mul(factor));
  grad_weight.copy_(sums);
}

} // namespace palimpsest::kernels
