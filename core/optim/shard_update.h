#pragma once

// What update rules share: a shard taken apart into the buffers of each of its groups.
//
//   for_each_group(shard, 2, [&](const GroupRange& group, const UpdateBuffers& buffers) { ... });

#include <palimpsest/core/contracts/param_store.h>

#include <functional>
#include <vector>

namespace palimpsest {

/// Views of one group's elements: all flat, of equal numel.
struct UpdateBuffers {
  at::Tensor weights; // fp32: the master, or the parameters where they are fp32 themselves
  at::Tensor gradient;
  std::vector<at::Tensor> moments;
  at::Tensor bf16_copy; // the parameters where there is a master; else undefined
};

/// Calls `update` for each group of the shard, in order. InternalError where the shard breaks its
/// contract: sizes, dtypes, the number of moments, gaps between groups.
void for_each_group(
    const ParamShard& shard,
    int moment_count,
    const std::function<void(const GroupRange&, const UpdateBuffers&)>& update);

} // namespace palimpsest
