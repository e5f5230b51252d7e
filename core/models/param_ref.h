#pragma once

// How a block names its parameters: by unit, never by tensor, so that a released and gathered unit
// is read anew.
//
//   BlockUnits made = add_units(chain, "model.layers.0.mlp", {{norm}, {gate, up}, {down}}, at::kBFloat16, trainable);
//   at::Tensor gate_up = made.refs[1].view();     // [2I, H], fused: neighbours in the unit

#include <palimpsest/core/contracts/chain.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest {

/// A run of neighbouring parameters of one unit, used as one tensor. A default one is an absent
/// parameter (no bias).
class ParamRef {
 public:
  ParamRef() = default;
  ParamRef(ParamUnit& unit, size_t first, size_t count = 1)
      : unit_(&unit), first_(first), count_(count) {}

  /// The same parameter, of a linear layer, where it is stored [in, out]: as [out, in].
  ParamRef transposed() const {
    ParamRef other = *this;
    other.transposed_ = !transposed_;
    return other;
  }

  bool present() const {
    return unit_ != nullptr;
  }
  bool trainable() const {
    return present() && unit_->trainable();
  }
  ParamUnit* unit() const {
    return unit_;
  }
  /// Size of view()'s first dimension, known while the unit is not gathered too. Not for scalars.
  int64_t rows() const;
  int64_t numel() const;
  /// The fused parameters, undefined where absent. InternalError while the unit is not gathered.
  at::Tensor view() const {
    return present() ? turned(unit_->view(first_, count_)) : at::Tensor();
  }
  /// Their fp32 gradient buffer, undefined where absent or frozen. `store`: the caller writes all
  /// of it now, instead of adding; allowed while it is fresh.
  at::Tensor grad(bool store = false) const {
    if (!trainable()) {
      return {};
    }
    return turned(
        store ? unit_->grad_view_to_store(first_, count_) : unit_->grad_view(first_, count_));
  }
  /// Whether there is no gradient that a new one would be added to.
  bool grad_is_fresh() const {
    return !trainable() || unit_->grad_is_fresh(first_, count_);
  }

 private:
  at::Tensor turned(const at::Tensor& stored) const {
    return transposed_ ? stored.t() : stored;
  }

  ParamUnit* unit_ = nullptr;
  size_t first_ = 0;
  size_t count_ = 0;
  bool transposed_ = false;
};

/// Whether the parameter of this name is trained.
using TrainableFilter = std::function<bool(const std::string&)>;

struct BlockUnits {
  std::vector<ParamRef> refs; // one per group, absent for an empty group
  std::vector<int> units; // their numbers in the chain
};

/// Adds a block's parameters to the chain: one unit for the trained ones (named `name`), one for the
/// frozen ones (`name`.frozen) and, where there is a codec, one that it holds (`name`.frozen.nf4) for
/// frozen matrices; each absent where empty. A group becomes one fused view; a filter that splits a
/// group is a UserError.
BlockUnits add_units(
    Chain& chain,
    const std::string& name,
    const std::vector<std::vector<Parameter>>& groups,
    at::ScalarType dtype,
    const TrainableFilter& trainable,
    std::shared_ptr<const ParamCodec> codec = nullptr);

} // namespace palimpsest
