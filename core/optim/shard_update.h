#pragma once

// What update rules share: a shard taken apart into the buffers of each of its groups.
//
//   for_each_group(shard, 2, scalars.seed, [&](const GroupRange& group, const UpdateBuffers& buffers) { ... });

#include <palimpsest/core/contracts/param_store.h>
#include <palimpsest/core/kernels/optimizer_math.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace palimpsest {

/// Views of one group's elements: all flat, of equal numel.
struct UpdateBuffers {
  at::Tensor weights; // the fp32 master, or the parameters (fp32 or bf16) where there is none
  at::Tensor gradient;
  std::vector<at::Tensor> moments;
  at::Tensor copy; // the parameters (bf16 or fp16) where there is a master; else undefined
  kernels::StochasticRounding rounding; // of the bf16 ones among weights and moments
};

/// Calls `update` for each group of the shard, in order. InternalError where the shard breaks its
/// contract: sizes, dtypes, the number of moments, gaps between groups.
void for_each_group(
    const ParamShard& shard,
    int moment_count,
    uint64_t seed,
    const std::function<void(const GroupRange&, const UpdateBuffers&)>& update);

} // namespace palimpsest
