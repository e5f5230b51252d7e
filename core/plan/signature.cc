#include <palimpsest/core/plan/signature.h>

namespace palimpsest {

std::vector<SignatureLine> signature(const StepPlan& plan, int rank, const Job& job) {
  std::vector<SignatureLine> lines;
  for (const Op& op : plan) {
    if (is_collective(op.kind)) {
      lines.push_back(
          {.kind = op.kind, .unit = op.unit, .mbs = op.mbs, .group = job.group(rank, op)});
    } else if (is_transfer(op.kind)) {
      lines.push_back({.kind = op.kind, .slot = op.slot, .peer = op.peer});
    }
  }
  return lines;
}

uint64_t communication_hash(const Plans& plans, const Job& job) {
  const Mesh& mesh = job.mesh();
  uint64_t hash = 0;
  for (const int size : {mesh.pipeline, mesh.replicate, mesh.shard, job.micro_batches()}) {
    hash = hash_mix(hash, static_cast<uint64_t>(size));
  }
  hash = job.reproducible() ? hash_mix(hash, 1) : hash; // its groups are others
  for (const StepPlan& plan :
       plans) { // groups follow from the mesh, the plan's rank and the operation
    hash = hash_mix(hash, 0x5eed);
    for (const Op& op : plan) {
      if (is_collective(op.kind) || is_transfer(op.kind)) {
        hash = hash_mix(hash, std::hash<Op>()(op));
      }
    }
  }
  return hash;
}

} // namespace palimpsest
