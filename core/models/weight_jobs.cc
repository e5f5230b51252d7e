#include <palimpsest/core/models/weight_jobs.h>

#include <palimpsest/core/kernels/embedding.h>
#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/core/kernels/norm.h>

#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace palimpsest {

void WeightJobs::linear(
    const at::Tensor& dy,
    const at::Tensor& x,
    const ParamRef& weight,
    const ParamRef& bias) {
  if (weight.trainable()) {
    submit(
        {.kind = Kind::kLinear, .gradient = dy, .operand = x, .parameter = weight, .bias = bias});
  } else if (bias.trainable()) {
    add(at::sum(dy, 0, /*keepdim=*/false, at::kFloat), bias);
  }
}

void WeightJobs::linear(
    const at::Tensor& dy,
    const at::Tensor& x,
    const Linear& layer,
    const BlockContext& context) {
  for (const Product& product : layer.products) {
    linear(product.outputs(dy), x, product.weight, product.bias);
  }
  for (const Adapter& adapter : layer.adapters) {
    const DropoutUse dropout = adapter.dropout_use(context);
    if (adapter.b.trainable()) {
      linear(adapter.outputs(dy), adapter.narrowed(x, dropout), adapter.b);
    }
    if (adapter.a.trainable()) {
      submit(
          {.kind = Kind::kLinear,
           .gradient = adapter.narrowed_gradient(dy),
           .operand = x,
           .parameter = adapter.a,
           .dropout = dropout});
    }
  }
}

void WeightJobs::embedding(
    const at::Tensor& ids,
    const at::Tensor& dy,
    const ParamRef& table,
    double scale) {
  if (table.trainable()) {
    submit(
        {.kind = Kind::kEmbedding,
         .gradient = dy,
         .operand = ids,
         .parameter = table,
         .scale = scale});
  }
}

namespace {

/// Zeros for the gradient of a norm's parameter, undefined where it is not trained.
at::Tensor gradient_of(const ParamRef& parameter, const at::Tensor& x) {
  return parameter.trainable() ? at::zeros({x.size(-1)}, x.options().dtype(at::kFloat))
                               : at::Tensor();
}

} // namespace

at::Tensor WeightJobs::norm(
    const at::Tensor& dy,
    const at::Tensor& x,
    const Norm& norm,
    const at::Tensor& statistics,
    const at::Tensor& add_to) {
  const at::Tensor gain = gradient_of(norm.gain, x);
  const at::Tensor bias = gradient_of(norm.bias, x);
  at::Tensor dx = norm.backward(dy, x, statistics, gain, bias, add_to);
  add(gain, norm.gain);
  add(bias, norm.bias);
  return dx;
}

void WeightJobs::head_norm(
    const at::Tensor& dy,
    const at::Tensor& x,
    const Norm& norm,
    const at::Tensor& rstd) {
  const at::Tensor gain = gradient_of(norm.gain, x);
  kernels::rms_norm_backward_(dy, x, norm.gain.view(), rstd, gain, norm.rms_gain());
  add(gain, norm.gain);
}

void WeightJobs::add(const at::Tensor& gradient, const ParamRef& parameter) {
  if (gradient.defined() && parameter.trainable()) {
    submit({.gradient = gradient, .parameter = parameter});
  }
}

void WeightJobs::run() {
  for (Job& job : jobs_) {
    execute(std::exchange(job, {}));
  }
  jobs_.clear();
}

std::vector<at::Tensor*> WeightJobs::tensors() {
  std::vector<at::Tensor*> result;
  for (Job& job : jobs_) {
    result.push_back(&job.gradient);
    if (job.operand.defined()) {
      result.push_back(&job.operand);
    }
  }
  return result;
}

void WeightJobs::submit(Job job) {
  if (deferred_) {
    jobs_.push_back(std::move(job));
  } else {
    execute(job);
  }
}

void WeightJobs::execute(const Job& job) {
  switch (job.kind) {
    case Kind::kLinear: {
      const bool store = job.parameter.grad_is_fresh() && job.bias.grad_is_fresh();
      kernels::linear_backward_weight(
          job.gradient,
          dropped(job.operand, job.dropout),
          job.parameter.grad(store),
          job.bias.grad(store),
          store);
      break;
    }
    case Kind::kEmbedding:
      kernels::embedding_backward(job.operand, job.gradient, job.parameter.grad(), job.scale);
      break;
    case Kind::kAdd:
      job.parameter.grad().add_(job.gradient);
      break;
  }
}

} // namespace palimpsest
