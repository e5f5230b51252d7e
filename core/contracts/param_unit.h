#pragma once

// The unit of sharding: a block's parameters of one (trainable, dtype) in one flat buffer. Frozen
// ones may be held by a codec: then elements count as if they were not, and a view is a copy.
//
//   ParamUnit unit("model.layers.0.mlp", {{"….gate_proj.weight", {I, H}}, {"….up_proj.weight", {I, H}}}, at::kFloat, true);
//   unit.bind_data(flat);                       // the store's doing
//   at::Tensor gate = unit.view(0);             // [I, H], a view of flat
//   at::Tensor both = unit.view(0, 2);          // [2I, H]: neighbours with equal trailing sizes, fused

#include <palimpsest/core/contracts/param_codec.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest {

/// One named parameter inside a unit. Names are global and equal to the model folder's.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape; // empty: a scalar
  int64_t offset = 0; // elements from the unit's start, set by the unit
  int64_t numel = 0; // set by the unit
};

class ParamUnit {
 public:
  /// `dtype`: of the parameters as blocks see them (the compute dtype). `codec`: of a frozen unit
  /// that is held otherwise.
  ParamUnit(
      std::string name,
      std::vector<Parameter> parameters,
      at::ScalarType dtype,
      bool trainable,
      std::shared_ptr<const ParamCodec> codec = nullptr);

  const std::string& name() const {
    return name_;
  }
  const std::vector<Parameter>& parameters() const {
    return parameters_;
  }
  at::ScalarType dtype() const {
    return dtype_;
  }
  bool trainable() const {
    return trainable_;
  }
  /// Elements from the first parameter to the last one's end: all parameters', and what fills a
  /// codec's blocks up.
  int64_t numel() const {
    return numel_;
  }

  /// How the flat buffer holds them: null where as blocks read them.
  const ParamCodec* codec() const {
    return codec_.get();
  }
  at::ScalarType held_dtype() const {
    return codec_ == nullptr ? dtype_ : codec_->dtype();
  }
  /// Entries of held_dtype() for so many elements, which end with a block.
  int64_t held(int64_t elements) const {
    return codec_ == nullptr ? elements : codec_->held(elements);
  }
  /// The other way round.
  int64_t elements(int64_t entries) const {
    return codec_ == nullptr ? entries : entries / codec_->entries() * codec_->block();
  }
  int64_t held_bytes() const {
    return held(numel_) * static_cast<int64_t>(c10::elementSize(held_dtype()));
  }

  /// The flat buffers, [held(numel)] and [numel] or longer; undefined while the plan's slot param or
  /// grad_buffer is not live. `grad` is fp32 or bf16, whatever the parameters' dtype; blocks add
  /// their weight gradients into its views.
  void bind_data(at::Tensor flat);
  void bind_grad(at::Tensor flat);
  /// The same for a gradient that begins: what the buffer holds counts as zeros. A parameter is
  /// zeroed when somebody wants to add to it, and not at all where its first gradient is stored.
  void bind_fresh_grad(at::Tensor flat);
  const at::Tensor& data() const {
    return data_;
  }
  /// After bind_fresh_grad() its content is complete only once settle_grad() was called.
  const at::Tensor& grad() const {
    return grad_;
  }

  /// Parameters [first, first + count) as one view of the flat buffer: the first dimension
  /// concatenated, the others equal. Of a unit with a codec a copy, that lives as long as its
  /// holder. InternalError where the buffer is not live.
  at::Tensor view(size_t first, size_t count = 1) const;
  at::Tensor grad_view(size_t first, size_t count = 1);

  /// Whether nobody has written any of these gradients yet; then their whole view may be stored to.
  bool grad_is_fresh(size_t first, size_t count = 1) const;
  at::Tensor grad_view_to_store(size_t first, size_t count = 1);
  /// Zeros for the parameters that nobody wrote.
  void settle_grad();

 private:
  std::vector<int64_t> shape_of(size_t first, size_t count) const;
  at::Tensor slice(const at::Tensor& flat, size_t first, size_t count) const;
  at::Tensor decoded(size_t first, size_t count) const;
  void zero_fresh(size_t first, size_t count);

  std::string name_;
  std::vector<Parameter> parameters_;
  at::ScalarType dtype_;
  bool trainable_;
  std::shared_ptr<const ParamCodec> codec_;
  int64_t numel_ = 0;
  at::Tensor data_;
  at::Tensor grad_;
  std::vector<bool> fresh_; // by parameter: its gradient was not written yet
};

} // namespace palimpsest
