#pragma once

// One matrix product in oneDNN, on raw pointers with any strides, with its compiled primitive kept
// for the next call.
//
//   onednn::matmul({.a = view(x), .b = transposed(view(w)), .c = view(y)});   // y = x w^T
//
// Private to core/kernels. Safe from several threads; scratch memory comes from at::empty, so
// trackers see it.

#include <ATen/core/Tensor.h>

#include <optional>

namespace palimpsest::kernels::onednn {

/// A 2-D operand: where it starts, its shape and its strides in elements; one stride is 1.
struct Matrix {
  void* data;
  at::ScalarType dtype;
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
  int64_t column_stride;
};

/// c = a b [+ bias of c's columns] [+ addend], or c += a b.
struct Matmul {
  Matrix a;
  Matrix b;
  Matrix c;
  std::optional<Matrix> bias = std::nullopt; ///< one row
  std::optional<Matrix> addend = std::nullopt; ///< c's shape, other memory than c
  bool accumulate = false;
};

/// True for a dtype that oneDNN computes fast on this processor: fp32 always, bf16 from AVX-512 on.
bool is_fast(at::ScalarType dtype);

/// True where `tensor` (2-D) can be an operand as it is: last dimension contiguous, rows not
/// overlapping.
bool is_operand(const at::Tensor& tensor);

/// `tensor` (2-D, is_operand) as a matrix.
Matrix view(const at::Tensor& tensor);

Matrix transposed(const Matrix& matrix);

/// Runs the product on the calling thread's OpenMP team and returns when it is done. No dimension
/// may be 0.
void matmul(const Matmul& product);

} // namespace palimpsest::kernels::onednn
