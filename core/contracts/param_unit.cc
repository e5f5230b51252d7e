#include <palimpsest/core/contracts/param_unit.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace palimpsest {

ParamUnit::ParamUnit(
    std::string name,
    std::vector<Parameter> parameters,
    at::ScalarType dtype,
    bool trainable,
    std::shared_ptr<const ParamCodec> codec)
    : name_(std::move(name)), parameters_(std::move(parameters)), dtype_(dtype),
      trainable_(trainable), codec_(std::move(codec)) {
  check(!trainable_ || codec_ == nullptr, "unit {} is trained, so no codec holds it", name_);
  const int64_t block = codec_ == nullptr ? 1 : codec_->block();
  for (Parameter& parameter : parameters_) {
    parameter.offset = numel_;
    parameter.numel = 1;
    for (const int64_t size : parameter.shape) {
      check(size >= 0, "parameter {} has a negative size", parameter.name);
      parameter.numel *= size;
    }
    numel_ += (parameter.numel + block - 1) / block * block;
  }
  fresh_.assign(parameters_.size(), false);
}

void ParamUnit::bind_data(at::Tensor flat) {
  check(
      !flat.defined() || (flat.numel() >= held(numel_) && flat.scalar_type() == held_dtype()),
      "unit {}: a flat buffer of another size or dtype",
      name_);
  data_ = std::move(flat);
}

void ParamUnit::bind_grad(at::Tensor flat) {
  check(
      !flat.defined() ||
          (flat.numel() >= numel_ &&
           (flat.scalar_type() == at::kFloat || flat.scalar_type() == at::kBFloat16)),
      "unit {}: a gradient buffer of another size or dtype",
      name_);
  grad_ = std::move(flat);
  fresh_.assign(parameters_.size(), false);
}

void ParamUnit::bind_fresh_grad(at::Tensor flat) {
  bind_grad(std::move(flat));
  grad_.narrow(0, numel_, grad_.numel() - numel_).zero_(); // padding stays zero
  fresh_.assign(parameters_.size(), true);
}

at::Tensor ParamUnit::view(size_t first, size_t count) const {
  check(data_.defined(), "parameters of unit {} are read while not gathered", name_);
  return codec_ == nullptr ? slice(data_, first, count) : decoded(first, count);
}

at::Tensor ParamUnit::grad_view(size_t first, size_t count) {
  check(grad_.defined(), "the gradient buffer of unit {} is used while not live", name_);
  at::Tensor view = slice(grad_, first, count);
  zero_fresh(first, count);
  return view;
}

bool ParamUnit::grad_is_fresh(size_t first, size_t count) const {
  check(grad_.defined(), "the gradient buffer of unit {} is used while not live", name_);
  const auto begin = fresh_.begin() + static_cast<ptrdiff_t>(first);
  return std::all_of(begin, begin + static_cast<ptrdiff_t>(count), std::identity());
}

at::Tensor ParamUnit::grad_view_to_store(size_t first, size_t count) {
  check(grad_is_fresh(first, count), "a gradient of unit {} is stored over another", name_);
  std::fill_n(fresh_.begin() + static_cast<ptrdiff_t>(first), count, false);
  return slice(grad_, first, count);
}

void ParamUnit::settle_grad() {
  zero_fresh(0, parameters_.size());
}

void ParamUnit::zero_fresh(size_t first, size_t count) {
  for (size_t index = first; index < first + count; ++index) {
    if (fresh_[index]) {
      fresh_[index] = false;
      slice(grad_, index, 1).zero_();
    }
  }
}

std::vector<int64_t> ParamUnit::shape_of(size_t first, size_t count) const {
  check(count > 0 && first + count <= parameters_.size(), "unit {}: no such parameter", name_);
  std::vector<int64_t> shape = parameters_[first].shape;
  for (size_t index = first + 1; index < first + count; ++index) {
    const std::vector<int64_t>& other = parameters_[index].shape;
    check(
        !shape.empty() && other.size() == shape.size() &&
            std::equal(other.begin() + 1, other.end(), shape.begin() + 1),
        "unit {}: neighbours of different sizes cannot be one view",
        name_);
    shape[0] += other[0];
  }
  return shape;
}

at::Tensor ParamUnit::slice(const at::Tensor& flat, size_t first, size_t count) const {
  const std::vector<int64_t> shape = shape_of(first, count);
  const Parameter& last = parameters_[first + count - 1];
  const int64_t begin = parameters_[first].offset;
  return flat.narrow(0, begin, last.offset + last.numel - begin).view(shape);
}

at::Tensor ParamUnit::decoded(size_t first, size_t count) const {
  at::Tensor copy = at::empty(shape_of(first, count), data_.options().dtype(dtype_));
  const at::Tensor flat = copy.view(-1);
  int64_t done = 0;
  for (size_t index = first; index < first + count; ++index) {
    const Parameter& parameter = parameters_[index];
    const at::Tensor coded = data_.narrow(0, held(parameter.offset), codec_->held(parameter.numel));
    codec_->decode(coded, flat.narrow(0, done, parameter.numel));
    done += parameter.numel;
  }
  return copy;
}

} // namespace palimpsest
