// Bytes of workspace, seconds and FLOPs of operations.

#include <palimpsest/core/plan/simulation.h>
#include <palimpsest/core/plan/traffic.h>

#include <algorithm>

namespace palimpsest {
std::optional<Lane> Simulation::lane(const Op& op) const {
  if (is_timed(op.kind)) {
    return Lane::kCompute;
  }
  if (is_collective(op.kind) || op.kind == OpKind::kSend) {
    return job_.links().communication_overlaps ? Lane::kCommunication : Lane::kCompute;
  }
  if (op.kind == OpKind::kStash || op.kind == OpKind::kFetch) {
    const bool out = op.kind == OpKind::kStash;
    return op.tier == TierId::kDisk ? Lane::kDisk : out ? Lane::kDeviceToHost : Lane::kHostToDevice;
  }
  return std::nullopt;
}

/// Whether a BACKWARD reads a lean tape.
bool Simulation::reads_lean_tape(const Rank& rank, const Op& op) const {
  return op.kind == OpKind::kBackward && op.part != BackwardPart::kWeight &&
      rank.copies[static_cast<size_t>(rank.compiled->uses(rank.next).back().place)].lean;
}

double Simulation::cost(const Rank& rank, const Op& op) const {
  if (seconds_ && (is_collective(op.kind) || op.kind == OpKind::kSend)) {
    return seconds_(op, job_);
  }
  const LinkCosts& links = job_.links();
  const auto& uses = rank.compiled->uses(rank.next);
  switch (op.kind) {
    case OpKind::kForward: {
      const BlockCost& block = job_.model().blocks[static_cast<size_t>(op.block)];
      return block.forward_seconds - (op.yields.empty() ? block.value_seconds.of(op.tape) : 0);
    }
    case OpKind::kBackward: {
      const BlockCost& block = job_.model().blocks[static_cast<size_t>(op.block)];
      return (op.part != BackwardPart::kWeight ? block.input_seconds : 0) +
          (op.part != BackwardPart::kInput ? block.weight_seconds : 0) +
          (reads_lean_tape(rank, op) ? block.lean_seconds : 0);
    }
    case OpKind::kUpdate:
      return job_.model().units[static_cast<size_t>(op.unit)].update_seconds;
    case OpKind::kStash:
    case OpKind::kFetch: {
      const Copy& source = rank.copies[static_cast<size_t>(uses.front().place)];
      return static_cast<double>(source.bytes) *
          (op.tier == TierId::kDisk ? links.disk : links.copy);
    }
    case OpKind::kSend:
      return static_cast<double>(job_.size(op.slot)) * links.communication;
    case OpKind::kGather:
    case OpKind::kPublish:
    case OpKind::kReduce:
      return moved_bytes(op, job_) * links.communication;
    default:
      return 0;
  }
}

/// `started`: the operation began a slot.
int64_t Simulation::workspace(const Rank& rank, const Op& op, bool started) const {
  switch (op.kind) {
    case OpKind::kForward:
      return job_.model().blocks[static_cast<size_t>(op.block)].forward_workspace.of(op.tape);
    case OpKind::kBackward: {
      const BlockCost& block = job_.model().blocks[static_cast<size_t>(op.block)];
      return op.part == BackwardPart::kWeight ? block.weight_workspace
          : reads_lean_tape(rank, op)         ? block.backward_workspace.lean
                                              : block.backward_workspace.full;
    }
    case OpKind::kUpdate:
      return job_.model().units[static_cast<size_t>(op.unit)].update_workspace;
    case OpKind::kReduce:
      if (op.axis == ReduceAxis::kShard && job_.axis_ranks(op.unit, op.axis) > 1) {
        const int64_t whole = job_.size({.kind = SlotKind::kGradBuffer, .owner = op.unit});
        return static_cast<int64_t>(job_.links().reduce_workspace * static_cast<double>(whole));
      }
      return 0;
    case OpKind::kRecv: // received beside what it is added to
      return started ? 0 : job_.size(op.slot);
    default:
      return 0;
  }
}

void Simulation::count_flops(Rank& rank) {
  const Op& op = rank.op();
  RankReport& report = rank.report;
  const BlockCost& block = job_.model().blocks[static_cast<size_t>(op.block)];
  if (op.kind == OpKind::kBackward) {
    report.backward_flops += op.part != BackwardPart::kWeight ? block.backward_flops : 0;
    report.recompute_flops += reads_lean_tape(rank, op) ? block.lean_flops : 0;
    return;
  }
  const size_t run = static_cast<size_t>(op.block) * static_cast<size_t>(job_.micro_batches()) +
      static_cast<size_t>(op.mb);
  const bool again = rank.ran[run];
  rank.ran[run] = true;
  ++report.forwards;
  report.reruns += again;
  (again ? report.recompute_flops : report.forward_flops) +=
      block.forward_flops - (op.yields.empty() ? block.value_flops : 0);
  if (op.block == job_.model().terminal() && op.tape != TapeMode::kNone) {
    report.backward_flops += block.backward_flops;
  }
}

/// Of each event: the longest path to it through the time graph. A cycle: collectives of different
/// groups cross, which hangs where a rank runs its communication strictly in order.
std::vector<double> Simulation::end_times() const {
  std::vector<int> blockers(events_.size(), 0);
  std::vector<size_t> first(events_.size() + 1, 0);
  for (const auto& [before, after] : order_) {
    ++blockers[static_cast<size_t>(after)];
    ++first[static_cast<size_t>(before) + 1];
  }
  for (size_t event = 0; event < events_.size(); ++event) {
    first[event + 1] += first[event];
  }
  std::vector<int> followers(order_.size());
  std::vector<size_t> fill(first.begin(), first.end() - 1);
  for (const auto& [before, after] : order_) {
    followers[fill[static_cast<size_t>(before)]++] = after;
  }
  std::vector<double> end(events_.size(), 0);
  std::vector<int> ready;
  ready.reserve(events_.size());
  for (size_t event = 0; event < events_.size(); ++event) {
    if (blockers[event] == 0) {
      ready.push_back(static_cast<int>(event));
    }
  }
  for (size_t next = 0; next < ready.size(); ++next) {
    const auto event = static_cast<size_t>(ready[next]);
    end[event] += events_[event].seconds;
    for (size_t edge = first[event]; edge < first[event + 1]; ++edge) {
      const auto follower = static_cast<size_t>(followers[edge]);
      end[follower] = std::max(end[follower], end[event]);
      if (--blockers[follower] == 0) {
        ready.push_back(followers[edge]);
      }
    }
  }
  if (ready.size() != events_.size()) {
    throw PlanError("deadlock: collectives of different groups cross");
  }
  return end;
}

} // namespace palimpsest
