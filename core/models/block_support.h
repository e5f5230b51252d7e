#pragma once

// Small things that every hand-written block says.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/models/dropout_use.h>
#include <palimpsest/core/models/linear.h>

#include <ATen/core/Tensor.h>

namespace palimpsest {

/// [B,T,H] or [B,H] as the rows [B*T,H] that kernels take.
inline at::Tensor as_rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// Rows of [B,T,H], as operations are counted with.
inline double row_count(const at::Tensor& x) {
  return static_cast<double>(x.size(0) * x.size(1));
}

/// Whether a block's only value is asked for.
inline bool yields(const ForwardRequest& request) {
  check(
      request.yields.empty() || request.yields == std::vector<int>{0},
      "a block of one value is asked for another");
  return !request.yields.empty();
}

/// Whether the gradient of a block's only input is asked for.
inline bool grades(const ForwardRequest& request) {
  return request.graded_inputs.empty() || request.graded_inputs.front();
}

/// Each token's position in its document, where rows hold several; undefined where they do not.
inline at::Tensor positions_of(const BlockContext& context) {
  return context.batch == nullptr ? at::Tensor() : context.batch->positions;
}

/// x [B,T,H] + dropout(layer(branch [R,K])): the end of a residual block.
at::Tensor project_residual(
    const at::Tensor& branch,
    const Linear& layer,
    const at::Tensor& x,
    const DropoutUse& dropout,
    const BlockContext& context);

/// The gradient [B,T,H] that enters the branch: dy under the same mask.
at::Tensor branch_gradient(const at::Tensor& dy, const DropoutUse& dropout);

} // namespace palimpsest
