#pragma once

// Sums over ranks on the CPU, whose result depends on nothing but the operands and their order.
//
//   add_in_order({part_of_rank_0, part_of_rank_1}, at::kBFloat16, shard, at::kFloat, n);
//
// Elements are independent of each other, so blocks, threads and vector widths change no bit.

#include <palimpsest/core/contracts/communicator.h>

#include <cstdint>
#include <span>

namespace palimpsest {

/// onto[i] = ((onto[i] + parts[0][i]) + parts[1][i]) + ... in fp32; parts of fp32, bf16 or fp16. A
/// sum in bf16 is rounded to nearest after each part. `onto` overlaps none of them.
void add_in_order(
    std::span<const void* const> parts,
    at::ScalarType dtype,
    void* onto,
    at::ScalarType onto_dtype,
    int64_t n);

/// result[i] = parts[0][i] op parts[1][i] op ..., from left to right; 16-bit floating point is
/// computed in fp32 and rounded once. `result` may be one of the parts. kMax and kMin take the
/// other operand where one is NaN or both are equal: NaN may get lost.
void reduce_in_order(
    std::span<const void* const> parts,
    at::ScalarType dtype,
    ReduceOp op,
    void* result,
    int64_t n);

} // namespace palimpsest
