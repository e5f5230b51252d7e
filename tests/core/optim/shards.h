#pragma once

// Shards for tests of update rules.

#include <palimpsest/core/contracts/optimizer.h>

#include <ATen/ops/zeros.h>

namespace palimpsest {

/// A shard of one group with zeroed moments. With `master` the parameters are bf16.
inline ParamShard make_shard(
    const at::Tensor& weights,
    const Optimizer& optimizer,
    double weight_decay,
    bool master) {
  ParamShard shard;
  shard.parameters = master ? weights.to(at::kBFloat16) : weights.clone();
  if (master) {
    shard.master = weights.clone();
  }
  for (int i = 0; i < optimizer.moment_count(); ++i) {
    shard.moments.push_back(at::zeros({weights.numel()}, at::kFloat));
  }
  shard.groups = {{.begin = 0, .end = weights.numel(), .weight_decay = weight_decay}};
  return shard;
}

} // namespace palimpsest
