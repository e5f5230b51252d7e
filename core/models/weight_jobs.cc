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
    submit({Kind::kLinear, dy, x, weight, bias});
  } else if (bias.trainable()) {
    submit({Kind::kAdd, at::sum(dy, 0, /*keepdim=*/false, at::kFloat), {}, bias, {}});
  }
}

void WeightJobs::embedding(const at::Tensor& ids, const at::Tensor& dy, const ParamRef& table) {
  if (table.trainable()) {
    submit({Kind::kEmbedding, dy, ids, table, {}});
  }
}

at::Tensor WeightJobs::rms_norm(
    const at::Tensor& dy,
    const at::Tensor& x,
    const ParamRef& gain,
    const at::Tensor& rstd,
    const at::Tensor& add_to) {
  at::Tensor gradient;
  if (gain.trainable()) {
    gradient = at::zeros({x.size(1)}, x.options().dtype(at::kFloat));
  }
  at::Tensor dx = kernels::rms_norm_backward(dy, x, gain.view(), rstd, gradient, add_to);
  add(gradient, gain);
  return dx;
}

void WeightJobs::add(const at::Tensor& gradient, const ParamRef& parameter) {
  if (gradient.defined() && parameter.trainable()) {
    submit({Kind::kAdd, gradient, {}, parameter, {}});
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
          job.gradient, job.operand, job.parameter.grad(store), job.bias.grad(store), store);
      break;
    }
    case Kind::kEmbedding:
      kernels::embedding_backward(job.operand, job.gradient, job.parameter.grad());
      break;
    case Kind::kAdd:
      job.parameter.grad().add_(job.gradient);
      break;
  }
}

} // namespace palimpsest
