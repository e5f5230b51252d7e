#include <palimpsest/core/models/linear.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/linear.h>

#include <ATen/ops/empty.h>

#include <fmt/format.h>

#include <algorithm>

namespace palimpsest {
namespace {

/// Rows [B*T,K] as the sequences [B,T,K] that dropout counts in.
at::Tensor sequences(const at::Tensor& x, const DropoutUse& use) {
  const int64_t count = use.rows.size(0);
  return x.view({count, count == 0 ? 0 : x.size(0) / count, x.size(1)});
}

} // namespace

at::Tensor dropped(const at::Tensor& x, const DropoutUse& use) {
  return use.p == 0
      ? x
      : kernels::dropout_forward(sequences(x, use), use.p, use.key, use.rows).view(x.sizes());
}

DropoutUse Adapter::dropout_use(const BlockContext& context) const {
  return palimpsest::dropout_use(dropout, block, call, context);
}

at::Tensor Adapter::outputs(const at::Tensor& y) const {
  return y.narrow(1, first, b.rows());
}

at::Tensor Adapter::narrowed(const at::Tensor& x, const DropoutUse& use) const {
  return kernels::linear_forward(dropped(x, use), a.view()).mul_(scale);
}

at::Tensor Adapter::narrowed_gradient(const at::Tensor& dy) const {
  return kernels::linear_backward_input(outputs(dy), b.view()).mul_(scale);
}

void Adapter::forward(const at::Tensor& y, const at::Tensor& x, const DropoutUse& use) const {
  const at::Tensor part = outputs(y);
  kernels::linear_forward_out(part, narrowed(x, use), b.view(), {}, part);
}

void Adapter::backward_input(const at::Tensor& dx, const at::Tensor& dy, const DropoutUse& use)
    const {
  const at::Tensor narrow = narrowed_gradient(dy);
  if (use.p == 0) {
    kernels::linear_backward_input_out(dx, narrow, a.view(), /*accumulate=*/true);
    return;
  }
  const at::Tensor kept = kernels::linear_backward_input(narrow, a.view());
  dx.add_(
      kernels::dropout_backward(sequences(kept, use), use.p, use.key, use.rows).view(dx.sizes()));
}

at::Tensor Product::outputs(const at::Tensor& y) const {
  return y.narrow(1, first, weight.rows());
}

bool Linear::backward_reads_input() const {
  const auto trainable = [](const auto& part) { return part.trainable(); };
  return std::ranges::any_of(products, trainable, &Product::weight) ||
      std::ranges::any_of(adapters, trainable);
}

at::Tensor Linear::forward(
    const at::Tensor& x,
    const BlockContext& context,
    const at::Tensor& residual) const {
  const Product& last = products.back();
  at::Tensor y = at::empty({x.size(0), last.first + last.weight.rows()}, x.options());
  for (const Product& product : products) {
    kernels::linear_forward_out(
        product.outputs(y),
        x,
        product.weight.view(),
        product.bias.view(),
        residual.defined() ? product.outputs(residual) : residual);
  }
  for (const Adapter& adapter : adapters) {
    adapter.forward(y, x, adapter.dropout_use(context));
  }
  return y;
}

at::Tensor Linear::backward_input(const at::Tensor& dy, const BlockContext& context) const {
  at::Tensor dx;
  for (const Product& product : products) {
    const at::Tensor weight = product.weight.view();
    const bool begun = dx.defined();
    if (!begun) {
      dx = at::empty({dy.size(0), weight.size(1)}, dy.options());
    }
    kernels::linear_backward_input_out(dx, product.outputs(dy), weight, /*accumulate=*/begun);
  }
  for (const Adapter& adapter : adapters) {
    adapter.backward_input(dx, dy, adapter.dropout_use(context));
  }
  return dx;
}

double Linear::forward_flops(double rows) const {
  int64_t elements = 0;
  for (const Product& product : products) {
    elements += product.weight.numel();
  }
  for (const Adapter& adapter : adapters) {
    elements += adapter.a.numel() + adapter.b.numel();
  }
  return 2 * rows * static_cast<double>(elements);
}

double Linear::backward_flops(double rows) const {
  const auto trained = [](const ParamRef& factor) {
    return factor.trainable() ? factor.numel() : 0;
  };
  int64_t elements = 0;
  for (const Product& product : products) {
    elements += trained(product.weight);
  }
  for (const Adapter& adapter : adapters) {
    elements += trained(adapter.a) + trained(adapter.b);
  }
  return forward_flops(rows) + 2 * rows * static_cast<double>(elements);
}

std::string Linear::kind() const {
  std::string kind;
  for (const Adapter& adapter : adapters) {
    kind += fmt::format(
        " +{}@{}{}", adapter.a.rows(), adapter.first, adapter.dropout > 0 ? " dropped" : "");
  }
  return kind;
}

} // namespace palimpsest
