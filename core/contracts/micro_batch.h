#pragma once

// What one micro-batch brings into a step. All of it needs no gradient; a block reads it beside its
// operands.
//
//   MicroBatch batch{.inputs = ids, .labels = shifted, .rows = rows, .target_count = count_targets(shifted)};

#include <palimpsest/core/base/labels.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest {

struct MicroBatch {
  /// Token ids, int64 [B, T], or features, float [B, D]: value(loader) of the plan.
  at::Tensor inputs;
  /// int64 [B, T], already shifted (labels[b, t] is the target of position t, kIgnoredLabel is
  /// none), or float targets [B, D] of a regression.
  at::Tensor labels;
  /// int64 [B]: each row's number among the step's samples over all ranks and micro-batches.
  /// Randomness is a function of it, so that it depends on no micro-batch size.
  at::Tensor rows;
  /// int64 [B, T] on the CPU: each token's position in its document, where rows hold several that
  /// must not see each other. A document begins where it is 0. Undefined: each row is one document.
  at::Tensor positions;
  /// Targets in `labels`: the micro-batch's share of the step's one denominator.
  int64_t target_count = 0;
  /// Tokens (or rows of features) without padding, for rates.
  int64_t token_count = 0;
};

/// The micro-batches of this rank for one optimizer step, in order.
using StepBatch = std::vector<MicroBatch>;

} // namespace palimpsest
