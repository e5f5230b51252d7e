#include <palimpsest/parallel/mesh/mesh_groups.h>

#include <palimpsest/core/base/error.h>

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace palimpsest {

namespace {

/// Mesh::world() of numbers that nobody has checked yet.
int64_t ranks_of(const Mesh& mesh) {
  return int64_t{mesh.pipeline} * mesh.replicate * mesh.shard;
}

} // namespace

Mesh resolve_mesh(int world, const MeshRequest& request) {
  Mesh mesh{.pipeline = request.stages};
  const auto rest = [&](int others) { // at least 1: the product below then shows what is wrong
    const int64_t taken = int64_t{request.stages} * others;
    return taken < 1 || world < taken ? 1 : static_cast<int>(world / taken);
  };
  if (request.zero == 0) {
    mesh.shard = request.shard.value_or(1);
    mesh.replicate = request.replicate ? *request.replicate : rest(mesh.shard);
  } else if (request.shard) {
    mesh.shard = *request.shard;
    mesh.replicate = request.replicate ? *request.replicate : rest(mesh.shard);
  } else {
    mesh.replicate = request.replicate.value_or(1);
    mesh.shard = rest(mesh.replicate);
  }
  const bool positive = mesh.pipeline >= 1 && mesh.replicate >= 1 && mesh.shard >= 1;
  if (!positive || ranks_of(mesh) != world) {
    throw UserError(
        "{} pipeline stages x {} replicas x {} shards make {} ranks, but there are {}; start as "
        "many, or change pipeline.stages, parallel.replicate or parallel.shard",
        mesh.pipeline,
        mesh.replicate,
        mesh.shard,
        ranks_of(mesh),
        world);
  }
  return mesh;
}

MeshGroups split_world(Communicator& world, const Mesh& mesh) {
  check(
      world.size() == mesh.world(), "a mesh of {} ranks in {}", mesh.world(), world.description());
  MeshGroups groups{.mesh = mesh};
  const int rank = world.rank();
  const int data = mesh.data_rank(rank);
  const int replica = data / mesh.shard;
  const int shard = data % mesh.shard;
  const int first = rank - data; // of this pipeline rank
  const auto split = [&](int size, int color, int key, const std::string& name) -> Communicator* {
    if (size == 1) {
      return nullptr;
    }
    groups.owned.push_back(world.split(color, key, name));
    return groups.owned.back().get();
  };
  groups.shard = split(mesh.shard, rank - shard, shard, "shard group");
  groups.replicate = split(mesh.replicate, first + shard, replica, "replicate group");
  if (groups.shard != nullptr && groups.replicate != nullptr) {
    groups.data = split(mesh.data(), first, mesh.batch_rank(rank), "data-parallel group");
  } else {
    groups.data = groups.shard != nullptr ? groups.shard : groups.replicate;
  }
  return groups;
}

} // namespace palimpsest
