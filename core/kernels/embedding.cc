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

constexpr int64_t kColumns = 64;

/// A row of dy for each id, to be added to that id's row.
template <typename T>
struct IdRows {
  IdRows(const at::Tensor& all_ids, const at::Tensor& dy)
      : ids(all_ids.const_data_ptr<int64_t>()), count(all_ids.numel()),
        data(dy.const_data_ptr<T>()), width(dy.size(1)) {}
  const int64_t* ids;
  int64_t count;
  const T* data;
  int64_t width;

  /// A thread owns columns and walks through all ids, so rows that repeat need no care and the work
  /// is even. f(first, last) of its columns, which begin at a multiple of kColumns.
  template <typename F>
  void for_columns(const F& f) const {
    at::parallel_for(0, (width + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
      f(begin * kColumns, std::min(end * kColumns, width));
    });
  }
};

template <typename T>
void add_scaled(float* sums, const T* row, float scale, int64_t columns) {
  for (int64_t c = 0; c < columns; ++c) {
    sums[c] += scale * static_cast<float>(row[c]);
  }
}

template <typename T>
void add_rows(const IdRows<T>& rows, float scale, float* sums) {
  rows.for_columns([&](int64_t first, int64_t last) {
    for (int64_t n = 0; n < rows.count; ++n) {
      float* target = sums + rows.ids[n] * rows.width + first;
      add_scaled(target, rows.data + n * rows.width + first, scale, last - first);
    }
  });
}

// The same into bf16: a row's sum over all its ids in fp32, rounded once with what it held.
template <typename T>
void add_row_sums(const IdRows<T>& rows, float scale, at::BFloat16* gradient) {
  std::vector<int64_t> order(static_cast<size_t>(rows.count)); // by id, then by place
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int64_t n) { return rows.ids[n]; });
  rows.for_columns([&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kColumns) {
      const int64_t columns = std::min(kColumns, end - first);
      for (auto place = order.begin(); place != order.end();) {
        const int64_t id = rows.ids[*place];
        std::array<float, kColumns> sums{};
        for (; place != order.end() && rows.ids[*place] == id; ++place) {
          add_scaled(sums.data(), rows.data + *place * rows.width + first, scale, columns);
        }
        at::BFloat16* target = gradient + id * rows.width + first;
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
    const at::Tensor own_ids = ids.contiguous();
    const at::Tensor own_dy = dy.contiguous();
    const auto scale_by = static_cast<float>(factor);
    with_type(dy.scalar_type(), [&](auto type) {
      const IdRows<decltype(type)> rows(own_ids, own_dy);
      if (into == at::kFloat) {
        add_rows(rows, scale_by, grad_weight.data_ptr<float>());
      } else {
        add_row_sums(rows, scale_by, grad_weight.data_ptr<at::BFloat16>());
      }
    });
    return;
  }
  // By way of the host where the device's index_add_ is not deterministic.
  const at::Tensor sums = grad_weight.cpu();
  sums.index_add_(0, ids.cpu(), dy.cpu().to(sums.scalar_type()).mul(factor));
  grad_weight.copy_(sums);
}

} // namespace palimpsest::kernels
