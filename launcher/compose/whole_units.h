#pragma once

// Whole units where each rank holds a part, one at a time: for what one rank writes.
//
//   WholeUnits whole(store, groups, ranks);
//   whole.lead([&](int unit) { return store.shard(unit).values(); },     // on all ranks
//              [&](const UnitSource& source) { model.write(folder, source); });   // on rank 0 alone

#include <palimpsest/core/models/weights.h>
#include <palimpsest/launcher/compose/ranks.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>

#include <ATen/core/Tensor.h>

#include <functional>

namespace palimpsest {

class WholeUnits {
 public:
  /// This rank's elements of something of a unit, store.range(unit) of them.
  using Part = std::function<at::Tensor(int unit)>;

  /// All outlive this.
  WholeUnits(const ShardedParamStore& store, const MeshGroups& groups, Ranks& ranks)
      : store_(store), groups_(groups), ranks_(ranks) {}

  /// Collective over the world: rank 0 runs `use`, which asks for units in any order; the ranks that
  /// hold parts of them serve it. What it was given is gone when it asks for another unit: no rank
  /// holds more than one whole. What `use` throws is thrown on all ranks.
  void lead(const Part& part, const std::function<void(const UnitSource&)>& use) const;

 private:
  at::Tensor gather(int unit, const at::Tensor& part) const;
  void serve(const Part& part) const;

  const ShardedParamStore& store_;
  const MeshGroups& groups_;
  Ranks& ranks_;
};

} // namespace palimpsest
