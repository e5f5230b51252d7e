#include <palimpsest/core/plan/traffic.h>

namespace palimpsest {

double moved_bytes(const Op& op, const Job& job) {
  const Mesh& mesh = job.mesh();
  const auto others = [&](const Slot& slot, int ranks) {
    return static_cast<double>(job.size(slot)) * (ranks - 1) / ranks;
  };
  if (op.kind == OpKind::kGather || op.kind == OpKind::kPublish) {
    return others({.kind = SlotKind::kParam, .owner = op.unit}, mesh.shard);
  }
  if (op.kind != OpKind::kReduce) {
    return 0;
  }
  const int ranks = job.axis_ranks(op.unit, op.axis);
  if (op.axis != ReduceAxis::kShard) {
    return 2 * others(job.gradient(op.unit), ranks);
  }
  const double scattered = others({.kind = SlotKind::kGradBuffer, .owner = op.unit}, ranks);
  // each replica sums its piece of the shard, then all want the whole shard
  return scattered + (job.reproducible() ? others(job.gradient(op.unit), mesh.replicate) : 0);
}

double PlanTraffic::bytes() const {
  return gathers.bytes + shard_sums.bytes + replica_sums.bytes + tie_sums.bytes + publishes.bytes;
}

PlanTraffic plan_traffic(const StepPlan& plan, const Job& job) {
  PlanTraffic traffic;
  const auto count = [&](TrafficSum& sum, const Op& op, int ranks) {
    sum.operations += ranks > 1 ? 1 : 0;
    sum.bytes += moved_bytes(op, job);
  };
  for (const Op& op : plan) {
    switch (op.kind) {
      case OpKind::kGather:
        count(traffic.gathers, op, job.mesh().shard);
        break;
      case OpKind::kPublish:
        count(traffic.publishes, op, job.mesh().shard);
        break;
      case OpKind::kReduce:
        count(
            op.axis == ReduceAxis::kShard           ? traffic.shard_sums
                : op.axis == ReduceAxis::kReplicate ? traffic.replica_sums
                                                    : traffic.tie_sums,
            op,
            job.axis_ranks(op.unit, op.axis));
        break;
      default:
        break;
    }
  }
  return traffic;
}

} // namespace palimpsest
