#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/core/kernels/onednn_matmul.h>

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <array>

namespace palimpsest::kernels {

namespace {

bool fast(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && b.is_cpu() && a.scalar_type() == b.scalar_type() &&
      onednn::is_fast(a.scalar_type()) && a.numel() > 0 && b.numel() > 0;
}

at::Tensor operand(const at::Tensor& tensor) {
  return onednn::is_operand(tensor) ? tensor : tensor.contiguous();
}

bool is_weight_operand(const at::Tensor& weight) {
  return onednn::is_operand(weight) || onednn::is_operand(weight.t());
}

// A weight [N,K] as it lies in memory, or transposed.
onednn::Matrix weight_view(const at::Tensor& weight) {
  return onednn::is_operand(weight) ? onednn::view(weight)
                                    : onednn::transposed(onednn::view(weight.t()));
}

at::Tensor weight_operand(const at::Tensor& weight) {
  return is_weight_operand(weight) ? weight : weight.contiguous();
}

void check_product(const at::Tensor& a, const at::Tensor& b, const char* function) {
  check(
      a.dim() == 2 && b.dim() == 2,
      "{}: operands have {} and {} dimensions",
      function,
      a.dim(),
      b.dim());
  check(
      a.scalar_type() == b.scalar_type(),
      "{}: operands are {} and {}",
      function,
      c10::toString(a.scalar_type()),
      c10::toString(b.scalar_type()));
}

void check_shape(const at::Tensor& tensor, at::IntArrayRef shape, const char* function) {
  check(
      tensor.sizes() == shape && (tensor.dim() == 1 || onednn::is_operand(tensor)),
      "{}: a tensor of {} elements does not fit, or its last dimension is not contiguous",
      function,
      tensor.numel());
}

onednn::Matrix row(const at::Tensor& vector) {
  return onednn::view(vector.unsqueeze(0));
}

// Adds (or stores) the column sums of dy. A thread owns columns and walks down all rows, so the
// bits do not depend on the number of threads; partial sums of 64 rows keep the rounding error from
// growing with the rows.
template <typename T>
void add_column_sums(const at::Tensor& dy, float* sums, bool overwrite) {
  constexpr int64_t kColumns = 128;
  constexpr int64_t kRows = 64;
  const int64_t rows = dy.size(0);
  const int64_t columns = dy.size(1);
  const int64_t stride = dy.stride(0);
  const T* data = dy.const_data_ptr<T>();
  at::parallel_for(0, (columns + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kColumns; first < std::min(end * kColumns, columns);
         first += kColumns) {
      const int64_t width = std::min(kColumns, columns - first);
      std::array<float, kColumns> total{};
      for (int64_t top = 0; top < rows; top += kRows) {
        std::array<float, kColumns> partial{};
        for (int64_t r = top; r < std::min(top + kRows, rows); ++r) {
          const T* source = data + r * stride + first;
          for (int64_t c = 0; c < width; ++c) {
            partial[c] += static_cast<float>(source[c]);
          }
        }
        for (int64_t c = 0; c < width; ++c) {
          total[c] += partial[c];
        }
      }
      for (int64_t c = 0; c < width; ++c) {
        sums[first + c] = overwrite ? total[c] : sums[first + c] + total[c];
      }
    }
  });
}

void backward_bias(const at::Tensor& dy, const at::Tensor& grad_bias, bool overwrite) {
  const bool simple =
      dy.is_cpu() && grad_bias.is_contiguous() && grad_bias.scalar_type() == at::kFloat;
  if (simple && dy.scalar_type() == at::kFloat) {
    add_column_sums<float>(dy, grad_bias.data_ptr<float>(), overwrite);
  } else if (simple && dy.scalar_type() == at::kBFloat16) {
    add_column_sums<at::BFloat16>(dy, grad_bias.data_ptr<float>(), overwrite);
  } else {
    const at::Tensor sums = dy.sum(0, /*keepdim=*/false, grad_bias.scalar_type());
    overwrite ? grad_bias.copy_(sums) : grad_bias.add_(sums);
  }
}

} // namespace

void linear_forward_out(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& residual) {
  check_product(x, weight, "linear_forward");
  check_shape(y, {x.size(0), weight.size(0)}, "linear_forward");
  check(
      x.size(1) == weight.size(1),
      "linear_forward: x has {} columns, weight {}",
      x.size(1),
      weight.size(1));
  if (!fast(x, weight)) {
    const at::Tensor product =
        at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
    y.copy_(residual.defined() ? at::add(product, residual) : product);
    return;
  }
  const bool in_place = residual.defined() && residual.scalar_type() == y.scalar_type() &&
      residual.const_data_ptr() == y.const_data_ptr() && residual.strides() == y.strides();
  const at::Tensor left = operand(x);
  const at::Tensor right = weight_operand(weight);
  const at::Tensor addend = residual.defined() && !in_place ? operand(residual) : at::Tensor();
  const at::Tensor row_bias = bias.defined() ? bias.contiguous() : at::Tensor();
  onednn::Matmul product{
      .a = onednn::view(left),
      .b = onednn::transposed(weight_view(right)),
      .c = onednn::view(y),
      .accumulate = in_place};
  if (bias.defined()) {
    check_shape(bias, {weight.size(0)}, "linear_forward: bias");
    product.bias = row(row_bias);
  }
  if (addend.defined()) {
    check_shape(addend, y.sizes(), "linear_forward: residual");
    product.addend = onednn::view(addend);
  }
  onednn::matmul(product);
}

at::Tensor linear_forward(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& residual) {
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
  linear_forward_out(y, x, weight, bias, residual);
  return y;
}

void linear_backward_input_out(
    const at::Tensor& dx,
    const at::Tensor& dy,
    const at::Tensor& weight,
    bool accumulate) {
  check_product(dy, weight, "linear_backward_input");
  check_shape(dx, {dy.size(0), weight.size(1)}, "linear_backward_input");
  check(
      dy.size(1) == weight.size(0),
      "linear_backward_input: dy has {} columns, weight {} rows",
      dy.size(1),
      weight.size(0));
  if (!fast(dy, weight)) {
    const at::Tensor product = at::mm(dy, weight);
    accumulate ? dx.add_(product) : dx.copy_(product);
    return;
  }
  const at::Tensor left = operand(dy);
  const at::Tensor right = weight_operand(weight);
  onednn::matmul(
      {.a = onednn::view(left),
       .b = weight_view(right),
       .c = onednn::view(dx),
       .accumulate = accumulate});
}

at::Tensor linear_backward_input(const at::Tensor& dy, const at::Tensor& weight) {
  at::Tensor dx = at::empty({dy.size(0), weight.size(1)}, dy.options());
  linear_backward_input_out(dx, dy, weight);
  return dx;
}

void linear_backward_weight(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& grad_weight,
    const at::Tensor& grad_bias,
    bool overwrite) {
  check_product(dy, x, "linear_backward_weight");
  check(
      dy.size(0) == x.size(0),
      "linear_backward_weight: dy has {} rows, x {}",
      dy.size(0),
      x.size(0));
  check(
      grad_weight.sizes() == at::IntArrayRef({dy.size(1), x.size(1)}) &&
          is_weight_operand(grad_weight),
      "linear_backward_weight: a gradient of {} elements does not fit",
      grad_weight.numel());
  const at::Tensor left = operand(dy);
  if (grad_bias.defined()) {
    check_shape(grad_bias, {dy.size(1)}, "linear_backward_weight: grad_bias");
    backward_bias(left, grad_bias, overwrite);
  }
  if (!fast(dy, x) || grad_weight.scalar_type() != at::kFloat) {
    const auto wide = c10::promoteTypes(dy.scalar_type(), grad_weight.scalar_type());
    const at::Tensor product = at::mm(dy.to(wide).t(), x.to(wide));
    overwrite ? grad_weight.copy_(product) : grad_weight.add_(product);
    return;
  }
  const at::Tensor right = operand(x);
  if (onednn::is_operand(grad_weight)) {
    onednn::matmul(
        {.a = onednn::transposed(onednn::view(left)),
         .b = onednn::view(right),
         .c = onednn::view(grad_weight),
         .accumulate = !overwrite});
  } else { // (dy^T x)^T = x^T dy
    onednn::matmul(
        {.a = onednn::transposed(onednn::view(right)),
         .b = onednn::view(left),
         .c = onednn::view(grad_weight.t()),
         .accumulate = !overwrite});
  }
}

} // namespace palimpsest::kernels
