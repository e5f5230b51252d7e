#include <palimpsest/parallel/sharding/step_agreement.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace palimpsest {
namespace {

/// finite, exhausted
constexpr size_t kFlags = 2;

int64_t chunks(int64_t elements) {
  return (elements + kShardChunk - 1) / kShardChunk;
}

/// Everybody's numbers, equally many, one rank after the other.
std::vector<double> all_gather(
    Communicator& group,
    const std::vector<double>& mine,
    const at::Tensor& all) {
  const auto count = static_cast<int64_t>(mine.size());
  const at::Tensor own = all.narrow(0, group.rank() * count, count);
  std::ranges::copy(mine, own.mutable_data_ptr<double>());
  group.all_gather(own, all).wait();
  const double* first = all.const_data_ptr<double>();
  return {first, first + all.numel()};
}

} // namespace

StepAgreement::StepAgreement(
    std::vector<UnitLayout> layouts,
    MeshGroups groups,
    MemoryContext& memory)
    : layouts_(std::move(layouts)), groups_(std::move(groups)), memory_(memory) {
  check(groups_.mesh.pipeline == 1, "ranks agree within one pipeline stage only");
}

Agreement StepAgreement::agree(Agreement mine) {
  const ScopedCategory category(memory_, Category::kCommunication);
  // All room first: once something is sent, there is no way back.
  const at::Tensor losses = room(groups_.data, mine.losses.size() + kFlags);
  const at::Tensor norm_parts = room(groups_.shard, padded_norm_parts());
  if (groups_.data != nullptr) {
    share_losses(mine, losses);
  }
  if (groups_.shard != nullptr) {
    share_norm_parts(mine, norm_parts);
  }
  return mine;
}

at::Tensor StepAgreement::room(const Communicator* group, size_t count) {
  return group == nullptr ? at::Tensor()
                          : at::empty({static_cast<int64_t>(count) * group->size()}, at::kDouble);
}

size_t StepAgreement::padded_norm_parts() const {
  size_t count = 0;
  for (const UnitLayout& layout : layouts_) {
    count += static_cast<size_t>(chunks(layout.shard));
  }
  return count;
}

/// Global micro-batch g = j N + r is the j-th of rank r of N. The flags travel as numbers beside
/// the losses: a maximum over ranks may lose a NaN.
void StepAgreement::share_losses(Agreement& agreement, const at::Tensor& room) const {
  const size_t count = agreement.losses.size();
  const auto ranks = static_cast<size_t>(groups_.data->size());
  agreement.losses.push_back(agreement.finite ? 1 : 0);
  agreement.losses.push_back(agreement.exhausted ? 1 : 0);
  const std::vector<double> all = all_gather(*groups_.data, agreement.losses, room);
  agreement.losses.resize(count * ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double* own = all.data() + rank * (count + kFlags);
    for (size_t number = 0; number < count; ++number) {
      agreement.losses[number * ranks + rank] = own[number];
    }
    agreement.finite = agreement.finite && own[count] == 1;
    agreement.exhausted = agreement.exhausted || own[count + 1] == 1;
  }
}

void StepAgreement::share_norm_parts(Agreement& agreement, const at::Tensor& room) const {
  const int ranks = groups_.shard->size();
  std::vector<double> padded; // as many on every rank
  const double* next = agreement.norm_parts.data();
  int64_t owned = 0;
  for (const UnitLayout& layout : layouts_) {
    const int64_t own = chunks(layout.range(groups_.shard->rank()).size());
    owned += own;
    check(std::cmp_less_equal(owned, agreement.norm_parts.size()), "norm parts are missing");
    padded.insert(padded.end(), next, next + own);
    padded.resize(padded.size() + static_cast<size_t>(chunks(layout.shard) - own));
    next += own;
  }
  check(std::cmp_equal(owned, agreement.norm_parts.size()), "norm parts of other units");
  const std::vector<double> all = all_gather(*groups_.shard, padded, room);
  agreement.norm_parts.clear();
  size_t first = 0; // of the unit, in each rank's numbers
  for (const UnitLayout& layout : layouts_) {
    for (int rank = 0; rank < ranks; ++rank) {
      const double* parts = all.data() + static_cast<size_t>(rank) * padded.size() + first;
      const int64_t own = chunks(layout.range(rank).size());
      agreement.norm_parts.insert(agreement.norm_parts.end(), parts, parts + own);
    }
    first += static_cast<size_t>(chunks(layout.shard));
  }
}

} // namespace palimpsest
