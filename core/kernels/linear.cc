#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/core/kernels/linear_few_rows.h>
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

// fp16, and bf16 below AVX-512: computed in fp32, a panel of the weight at a time, so that no whole
// copy of it is made.
bool widened(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && b.is_cpu() && a.scalar_type() == b.scalar_type() &&
      is_fast_dtype(a.scalar_type()) && a.numel() > 0 && b.numel() > 0;
}

/// Calls f(first row, rows) for the panels of a weight [N,K].
template <typename F>
void for_each_panel(const at::Tensor& weight, F&& f) {
  constexpr int64_t kPanelElements = int64_t{1} << 19;
  const int64_t rows = std::max<int64_t>(1, kPanelElements / weight.size(1));
  for (int64_t first = 0; first < weight.size(0); first += rows) {
    f(first, std::min(rows, weight.size(0) - first));
  }
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

void add_or_copy(const at::Tensor& sums, const at::Tensor& gradient, bool overwrite) {
  overwrite ? gradient.copy_(sums) : gradient.add_(sums);
}

void backward_bias(const at::Tensor& dy, const at::Tensor& grad_bias, bool overwrite) {
  const bool simple =
      dy.is_cpu() && grad_bias.is_contiguous() && grad_bias.scalar_type() == at::kFloat;
  if (simple && dy.scalar_type() == at::kFloat) {
    add_column_sums<float>(dy, grad_bias.data_ptr<float>(), overwrite);
  } else if (simple && dy.scalar_type() == at::kBFloat16) {
    add_column_sums<at::BFloat16>(dy, grad_bias.data_ptr<float>(), overwrite);
  } else if (simple && dy.scalar_type() == at::kHalf) {
    add_column_sums<at::Half>(dy, grad_bias.data_ptr<float>(), overwrite);
  } else {
    const auto wide = c10::promoteTypes(grad_bias.scalar_type(), at::kFloat);
    add_or_copy(dy.sum(0, /*keepdim=*/false, wide), grad_bias, overwrite);
  }
}

void forward_widened(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& residual) {
  const at::Tensor wide_x = x.to(at::kFloat);
  for_each_panel(weight, [&](int64_t first, int64_t rows) {
    const auto columns = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(-1, first, rows).to(at::kFloat) : tensor;
    };
    const at::Tensor panel = weight.narrow(0, first, rows).to(at::kFloat);
    y.narrow(1, first, rows).copy_(linear_forward(wide_x, panel, columns(bias), columns(residual)));
  });
}

void backward_input_widened(
    const at::Tensor& dx,
    const at::Tensor& dy,
    const at::Tensor& weight,
    bool accumulate) {
  const at::Tensor wide = accumulate ? dx.to(at::kFloat) : at::empty(dx.sizes(), at::kFloat);
  for_each_panel(weight, [&](int64_t first, int64_t rows) {
    const at::Tensor panel = weight.narrow(0, first, rows).to(at::kFloat);
    const at::Tensor part = dy.narrow(1, first, rows).to(at::kFloat);
    linear_backward_input_out(wide, part, panel, accumulate || first > 0);
  });
  dx.copy_(wide);
}

// Of any dtypes: in fp32, or as wide as the widest.
void backward_weight_widened(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& grad_weight,
    bool overwrite) {
  const auto wide =
      c10::promoteTypes(c10::promoteTypes(dy.scalar_type(), grad_weight.scalar_type()), at::kFloat);
  if (!widened(dy, x) || wide != at::kFloat) {
    return add_or_copy(at::mm(dy.to(wide).t(), x.to(wide)), grad_weight, overwrite);
  }
  const at::Tensor wide_x = x.to(wide);
  for_each_panel(grad_weight, [&](int64_t first, int64_t rows) {
    const at::Tensor part = dy.narrow(1, first, rows).to(wide);
    const at::Tensor gradient = grad_weight.narrow(0, first, rows);
    if (gradient.scalar_type() == at::kFloat) {
      return linear_backward_weight(part, wide_x, gradient, {}, overwrite);
    }
    const at::Tensor sum = at::empty(gradient.sizes(), wide_x.options());
    if (!overwrite) {
      sum.copy_(gradient);
    }
    linear_backward_weight(part, wide_x, sum, {}, overwrite);
    gradient.copy_(sum); // not add_, which makes fp32 copies of both
  });
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
  if (bias.defined()) {
    check_shape(bias, {weight.size(0)}, "linear_forward: bias");
  }
  const at::Tensor summand = residual.defined() ? operand(residual) : at::Tensor();
  if (summand.defined()) {
    check_shape(summand, y.sizes(), "linear_forward: residual");
  }
  const auto alike = [&](const at::Tensor& tensor) {
    return !tensor.defined() || tensor.scalar_type() == x.scalar_type();
  };
  if (is_few_rows(x, weight) && alike(y) && alike(bias) && alike(summand)) {
    linear_few_rows(y, x, weight, bias.defined() ? bias.contiguous() : bias, summand);
    return;
  }
  if (!fast(x, weight) && widened(x, weight)) {
    return forward_widened(y, x, weight, bias, summand);
  }
  if (!fast(x, weight)) {
    const at::Tensor product =
        at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
    y.copy_(residual.defined() ? at::add(product, residual) : product);
    return;
  }
  const bool in_place = summand.defined() && alike(summand) && alike(y) &&
      summand.const_data_ptr() == y.const_data_ptr() && summand.strides() == y.strides();
  const at::Tensor left = operand(x);
  const at::Tensor right = weight_operand(weight);
  const at::Tensor addend = in_place ? at::Tensor() : summand;
  const at::Tensor row_bias = bias.defined() ? bias.contiguous() : at::Tensor();
  onednn::Matmul product{
      .a = onednn::view(left),
      .b = onednn::transposed(weight_view(right)),
      .c = onednn::view(y),
      .accumulate = in_place};
  if (bias.defined()) {
    product.bias = row(row_bias);
  }
  if (addend.defined()) {
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
  if (!fast(dy, weight) && widened(dy, weight)) {
    return backward_input_widened(dx, dy, weight, accumulate);
  }
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
  // A product of oneDNN ends in fp32 or in its operands' type.
  const bool ends_there =
      grad_weight.scalar_type() == at::kFloat || grad_weight.scalar_type() == dy.scalar_type();
  if (!fast(dy, x) || !ends_there) {
    return backward_weight_widened(left, x, grad_weight, overwrite);
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
