#include <palimpsest/launcher/compose/whole_units.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <exception>
#include <utility>

namespace palimpsest {
namespace {

constexpr int64_t kNoMore = -1;

/// Rank 0 of the group says which unit comes next.
int64_t announce(Communicator& group, int64_t unit) {
  const at::Tensor next = at::full({1}, unit, at::kLong);
  group.broadcast(next, 0).wait();
  return next.item<int64_t>();
}

} // namespace

at::Tensor WholeUnits::gather(int unit, const at::Tensor& part) const {
  const UnitLayout& layout = store_.layout(unit);
  const at::Tensor padded = at::zeros({layout.shard}, part.options());
  padded.narrow(0, 0, part.numel()).copy_(part);
  const at::Tensor whole = at::empty({layout.whole()}, part.options());
  if (ranks_.leads()) { // once nothing can fail here any more
    announce(*groups_.shard, unit);
  }
  groups_.shard->all_gather(padded, whole).wait();
  return whole.narrow(0, 0, layout.elements);
}

void WholeUnits::serve(const Part& part) const {
  for (;;) {
    const int64_t next = announce(*groups_.shard, kNoMore);
    if (next == kNoMore) {
      return;
    }
    gather(static_cast<int>(next), part(static_cast<int>(next)));
  }
}

void WholeUnits::lead(const Part& part, const std::function<void(const UnitSource&)>& use) const {
  const bool in_parts = groups_.shard != nullptr;
  std::exception_ptr failure;
  if (ranks_.leads()) {
    int held = -1;
    at::Tensor whole;
    const UnitSource source = [&](int unit) {
      const bool cut = in_parts && store_.layout(unit).ranks > 1;
      if (cut && unit != held) {
        whole = at::Tensor();
        whole = gather(unit, part(unit));
        held = unit;
      }
      return UnitValues{.values = cut ? whole : part(unit)};
    };
    try {
      use(source);
    } catch (...) {
      failure = std::current_exception();
    }
    if (in_parts) {
      announce(*groups_.shard, kNoMore);
    }
  } else if (in_parts && ranks_.rank() < groups_.mesh.shard) { // of rank 0's replica
    serve(part);
  }
  ranks_.together([&] {
    if (failure != nullptr) {
      std::rethrow_exception(failure);
    }
  });
}

} // namespace palimpsest
