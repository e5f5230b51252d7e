#pragma once

// In which types a trained parameter's states are kept.
//
//   const StatePrecision precision{.master = false, .gradients = at::kBFloat16, .moments = at::kBFloat16};
//   precision.state_bytes(at::kBFloat16, 2);      // 4: two moments, no master
//
// The update itself is always computed in fp32; what is narrower is rounded as it is stored.

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace palimpsest {

struct StatePrecision {
  bool master = true; ///< an fp32 copy of parameters that are not fp32 themselves
  at::ScalarType gradients = at::kFloat; ///< of buffers and shards: fp32 or bf16
  at::ScalarType moments = at::kFloat; ///< fp32 or bf16

  bool has_master(at::ScalarType parameters) const {
    return master && parameters != at::kFloat;
  }
  /// Of one element.
  int64_t gradient_bytes() const {
    return static_cast<int64_t>(c10::elementSize(gradients));
  }
  /// Of one element's master and moments.
  int64_t state_bytes(at::ScalarType parameters, int moment_count) const {
    return (has_master(parameters) ? int64_t{sizeof(float)} : 0) +
        moment_count * static_cast<int64_t>(c10::elementSize(moments));
  }
};

} // namespace palimpsest
