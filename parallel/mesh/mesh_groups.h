#pragma once

// How the ranks of a run are arranged, and the groups that one rank talks in.
//
//   const Mesh mesh = resolve_mesh(8, {.zero = 3, .shard = 4});      // 1 stage x 2 replicas x 4 shards
//   const MeshGroups groups = split_world(*world, mesh);
//   groups.shard->all_gather(mine, whole);                           // among the 4 ranks of this one's replica
//   const int rank = groups.data_rank();                             // takes the global micro-batches j N + rank

#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/core/plan/job.h>

#include <memory>
#include <optional>
#include <vector>

namespace palimpsest {

/// What the config says of a mesh; what it leaves open follows from the number of ranks.
struct MeshRequest {
  int zero = 0;
  int stages = 1;
  std::optional<int> replicate = std::nullopt;
  std::optional<int> shard = std::nullopt;
};

/// stages x replicate x shard = world. Where nothing is sharded (zero: 0) all data-parallel ranks
/// are replicas; else one shard group takes them, or as many groups as `replicate` or `shard` asks
/// for (hybrid sharding). UserError with the numbers where they do not fit.
Mesh resolve_mesh(int world, const MeshRequest& request);

/// The groups of one rank; null stands for a group of one. A default one is a single process. Copies
/// share their communicators.
struct MeshGroups {
  Mesh mesh{};
  Communicator* shard = nullptr; ///< one replica's shards
  Communicator* replicate = nullptr; ///< the ranks that hold the same shard
  /// Both together, in the order that Mesh::batch_rank() counts. The same object as one of the
  /// others where that is all there is.
  Communicator* data = nullptr;
  std::vector<std::shared_ptr<Communicator>> owned{}; ///< what the pointers above point to

  int shard_rank() const {
    return shard == nullptr ? 0 : shard->rank();
  }
  int replicate_rank() const {
    return replicate == nullptr ? 0 : replicate->rank();
  }
  int data_rank() const {
    return data == nullptr ? 0 : data->rank();
  }
};

/// Collective over `world`, whose size is the mesh's and which outlives the groups.
MeshGroups split_world(Communicator& world, const Mesh& mesh);

} // namespace palimpsest
