#include <palimpsest/core/plan/device_room.h>

#include <algorithm>

namespace palimpsest {
namespace {

/// Of a budget, and besides, for what nobody counts.
constexpr int64_t kUncountedShare = 250;
constexpr int64_t kUncountedBytes = int64_t{32} << 10;

} // namespace

int64_t room_for_plans(int64_t budget, int64_t already_held) {
  return budget - budget / kUncountedShare - kUncountedBytes - already_held;
}

int64_t least_budget(int64_t counted, int64_t already_held) {
  const int64_t bytes = counted + kUncountedBytes + already_held;
  return bytes + (bytes - 1) / (kUncountedShare - 1);
}

int64_t peak_with_samples(
    const Plans& plans,
    const PlanReport& report,
    const Job& job,
    std::optional<int64_t> micro_batches) {
  const int64_t sample = job.model().batch_bytes;
  int64_t most = 0;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    int64_t waiting = micro_batches.value_or(job.micro_batches()) * sample;
    for (size_t number = 0; number < plans[rank].size(); ++number) {
      const Op& op = plans[rank][number];
      waiting -= op.kind == OpKind::kLoad ? sample : 0;
      most = std::max(most, report.ranks[rank].device_bytes[number] + waiting);
      const bool drops = op.kind == OpKind::kDrop && op.slot.kind == SlotKind::kValue;
      waiting += drops && op.slot.owner == kLoader ? sample : 0;
    }
  }
  return most;
}

} // namespace palimpsest
