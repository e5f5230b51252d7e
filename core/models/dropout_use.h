#pragma once

// One use of dropout in a block, decided where the micro-batch is known.
//
//   const DropoutUse use = dropout_use(0.1, block, call, context);
//   at::Tensor y = kernels::dropout_forward(x, use.p, use.key, use.rows);

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/kernels/dropout.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace palimpsest {

/// Off (p = 0) outside training.
struct DropoutUse {
  double p = 0;
  kernels::DropoutKey key = {};
  at::Tensor rows = {};
};

/// `block` and `call` name it inside the model.
DropoutUse dropout_use(double p, uint32_t block, uint32_t call, const BlockContext& context);

} // namespace palimpsest
