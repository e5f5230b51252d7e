#pragma once

// What the contract asks of the tensors of an operation, checked the same way by every engine.
//
//   check_all_gather(mine, whole, size());   // InternalError naming the operation and the sizes
//
// A wrong operand is a fault of the caller on this rank: it is found before any peer hears of the
// operation.

#include <palimpsest/core/contracts/communicator.h>

namespace palimpsest {

/// mine [n], whole [size n], of one dtype and device.
void check_all_gather(const at::Tensor& mine, const at::Tensor& whole, int size);
/// whole [size n] of fp32, bf16 or fp16; mine [n] of fp32 or bf16, elsewhere in memory.
void check_reduce_scatter(const at::Tensor& whole, const at::Tensor& mine, int size);
/// uint8, int32, int64, fp16, bf16, fp32 or fp64.
void check_all_reduce(const at::Tensor& tensor);
void check_broadcast(const at::Tensor& tensor, int root, int size);
/// `peer` is another rank of the group.
void check_transfer(const at::Tensor& tensor, int peer, int rank, int size);

} // namespace palimpsest
