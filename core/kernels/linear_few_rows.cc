#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/linear_few_rows.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/linear_few_rows.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

/// Rows of x and of the weight whose products are summed side by side, in registers.
constexpr int64_t kTile = 4;

/// Columns of y that are summed side by side where the weight lies transposed.
constexpr int64_t kColumns = 256;

template <typename T>
struct Product {
  const float* x; // [rows, inner], contiguous
  const T* weight; // [columns, inner], or transposed
  int64_t weight_stride; // of what lies in rows
  const T* bias; // or null
  const T* residual; // or null
  int64_t residual_stride;
  T* y;
  int64_t y_stride;
  int64_t rows;
  int64_t columns;
  int64_t inner;

  void write(int64_t row, int64_t column, float sum) const {
    if (bias != nullptr) {
      sum += static_cast<float>(bias[column]);
    }
    if (residual != nullptr) {
      sum += static_cast<float>(residual[row * residual_stride + column]);
    }
    y[row * y_stride + column] = static_cast<T>(sum);
  }
};

// kRows rows of x times kWeights rows of the weight, the column-th and those `apart` further each.
template <int kRows, int kWeights, typename T>
void dot_tile(const Product<T>& p, int64_t row, int64_t column, int64_t apart) {
  const FloatTag d;
  FloatVector sums[kRows][kWeights];
  for (auto& row_sums : sums) {
    for (auto& sum : row_sums) {
      sum = hn::Zero(d);
    }
  }
  const float* x = p.x + row * p.inner;
  const T* weight = p.weight + column * p.weight_stride;
  const int64_t between = apart * p.weight_stride;
  for_each_vector(p.inner, [&](int64_t i, size_t lanes) HWY_ATTR {
    FloatVector weights[kWeights];
    for (int c = 0; c < kWeights; ++c) {
      weights[c] = load(d, weight + c * between + i, lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const auto value = load(d, x + r * p.inner + i, lanes);
      for (int c = 0; c < kWeights; ++c) {
        sums[r][c] = hn::MulAdd(value, weights[c], sums[r][c]);
      }
    }
  });
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kWeights; ++c) {
      p.write(row + r, column + c * apart, hn::GetLane(hn::SumOfLanes(d, sums[r][c])));
    }
  }
}

// All rows of x times kWeights rows of the weight, which stay in the first-level cache meanwhile.
template <int kWeights, typename T>
void dot_column(const Product<T>& p, int64_t column, int64_t apart) {
  int64_t row = 0;
  for (; row + kTile <= p.rows; row += kTile) {
    dot_tile<kTile, kWeights>(p, row, column, apart);
  }
  switch (p.rows - row) {
    case 3:
      return dot_tile<3, kWeights>(p, row, column, apart);
    case 2:
      return dot_tile<2, kWeights>(p, row, column, apart);
    case 1:
      return dot_tile<1, kWeights>(p, row, column, apart);
    default:
      return;
  }
}

// The rows of a tile lie far apart, so that each thread reads four long streams: of neighbours, whose
// streams end after a row, the memory delivers little more than half.
template <typename T>
void by_weight_rows(const Product<T>& p) {
  const int64_t tiles = p.columns / kTile;
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 15) / (kTile * p.inner));
  at::parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column) {
      dot_column<kTile>(p, column, tiles);
    }
  });
  for (int64_t column = tiles * kTile; column < p.columns; ++column) {
    dot_column<1>(p, column, 1);
  }
}

// The weight's rows are y's columns: each row of the weight is added to the sums, times a number.
template <typename T>
void by_weight_columns(const Product<T>& p) {
  const FloatTag d;
  const int64_t blocks = (p.columns + kColumns - 1) / kColumns;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kColumns; first < std::min(end * kColumns, p.columns);
         first += kColumns) {
      const int64_t width = std::min(kColumns, p.columns - first);
      std::array<std::array<float, kColumns>, kFewRows> sums; // 32 KiB
      for (int64_t row = 0; row < p.rows; ++row) {
        std::fill_n(sums[row].data(), width, 0.0F);
      }
      for (int64_t k = 0; k < p.inner; ++k) {
        const T* weight = p.weight + k * p.weight_stride + first;
        for (int64_t row = 0; row < p.rows; ++row) {
          const auto value = hn::Set(d, p.x[row * p.inner + k]);
          float* sum = sums[row].data();
          for_each_vector(width, [&](int64_t i, size_t lanes) HWY_ATTR {
            store(
                d,
                hn::MulAdd(value, load(d, weight + i, lanes), load(d, sum + i, lanes)),
                sum + i,
                lanes);
          });
        }
      }
      for (int64_t row = 0; row < p.rows; ++row) {
        for (int64_t i = 0; i < width; ++i) {
          p.write(row, first + i, sums[row][i]);
        }
      }
    }
  });
}

void few_rows_fast(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& residual) {
  with_type(weight.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const bool transposed = weight.stride(1) != 1 && weight.size(1) != 1;
    const Product<T> product{
        .x = x.const_data_ptr<float>(),
        .weight = weight.const_data_ptr<T>(),
        .weight_stride = weight.stride(transposed ? 1 : 0),
        .bias = bias.defined() ? bias.const_data_ptr<T>() : nullptr,
        .residual = residual.defined() ? residual.const_data_ptr<T>() : nullptr,
        .residual_stride = residual.defined() ? residual.stride(0) : 0,
        .y = y.data_ptr<T>(),
        .y_stride = y.stride(0),
        .rows = x.size(0),
        .columns = weight.size(0),
        .inner = weight.size(1)};
    transposed ? by_weight_columns(product) : by_weight_rows(product);
  });
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {
HWY_EXPORT(few_rows_fast);
}

bool is_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  const bool rows = weight.size(1) == 1 || weight.stride(1) == 1;
  const bool columns = weight.size(0) == 1 || weight.stride(0) == 1;
  return x.is_cpu() && weight.is_cpu() && x.scalar_type() == weight.scalar_type() &&
      is_fast_dtype(x.scalar_type()) && x.size(0) <= kFewRows && x.numel() > 0 &&
      weight.numel() > 0 && (rows || columns);
}

void linear_few_rows(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& residual) {
  HWY_DYNAMIC_DISPATCH(few_rows_fast)
  (y, x.to(at::kFloat).contiguous(), weight, bias, residual);
}

} // namespace palimpsest::kernels
#endif
