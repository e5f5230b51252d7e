#pragma once

// What the two normalisations share: sums over rows that are the same bits on any number of threads.
// Private to core/kernels.
//
//   const RowGroups groups(rows);
//   groups.for_each([&](int64_t group, int64_t begin, int64_t end) { ... });   // into sums[group]
//   add_in_order(grad_weight, sums);
//
// Each group of rows sums its part of a parameter's gradient apart, in row order; the groups' sums
// are then added in order. Groups depend on the number of rows alone.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

namespace palimpsest::kernels {

class RowGroups {
 public:
  explicit RowGroups(int64_t rows) : rows_(rows) {
    constexpr int64_t kFewestRows = 16;
    constexpr int64_t kMostGroups = 64;
    count_ =
        std::max<int64_t>(1, quotient(rows, std::max(kFewestRows, quotient(rows, kMostGroups))));
  }

  int64_t count() const {
    return count_;
  }
  /// f(group, first row, one past its last row), on the threads; a group may have no rows.
  template <typename F>
  void for_each(const F& f) const {
    const int64_t size = quotient(rows_, count_);
    at::parallel_for(0, count_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        f(group, std::min(group * size, rows_), std::min((group + 1) * size, rows_));
      }
    });
  }

 private:
  /// Rounded up.
  static int64_t quotient(int64_t number, int64_t by) {
    return (number + by - 1) / by;
  }

  int64_t rows_;
  int64_t count_;
};

/// gradient += the groups' sums [groups, H]; nothing where there is no gradient.
inline void add_in_order(const at::Tensor& gradient, const at::Tensor& sums) {
  for (int64_t group = 0; gradient.defined() && group < sums.size(0); ++group) {
    gradient.add_(sums.select(0, group));
  }
}

/// fp32, or fp64 for fp64: what statistics are computed in.
inline at::ScalarType statistics_dtype(const at::Tensor& x) {
  return c10::promoteTypes(x.scalar_type(), at::kFloat);
}

} // namespace palimpsest::kernels
