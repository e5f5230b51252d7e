#include <palimpsest/launcher/compose/monitor.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/launcher/compose/agreed_cost.h>
#include <palimpsest/launcher/compose/replanner.h>
#include <palimpsest/memory/profile/refine.h>

#include <ATen/ops/from_blob.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

Monitor::Monitor(
    Ranks& ranks,
    PlanBook& plans,
    MemoryContext& memory,
    Settings settings,
    const std::vector<Observer*>& observers)
    : ranks_(ranks), plans_(plans), memory_(memory), settings_(std::move(settings)),
      observers_(observers), trace_(memory, settings_.micro_batches) {}

void Monitor::op_begin(size_t index, const Op& op) {
  trace_.op_begin(index, op);
}

void Monitor::op_end(size_t index, const Op& op) {
  trace_.op_end(index, op);
}

void Monitor::step_end(const StepRecord& record) {
  trace_.step_end(record);
  if (++steps_ < next_look_) {
    return;
  }
  next_look_ = next_look_ * 10 / 3;
  if (settings_.watch_memory) {
    fit_to_free_memory();
  }
  refine();
}

void Monitor::refine() {
  const PlannedStep& step = *plans_.plan(settings_.micro_batches);
  const bool traced = trace_.last().size() == step.plan.size();
  ModelCost cost = plans_.cost();
  if (traced) {
    std::vector<double> seconds;
    for (const TracedOp& op : trace_.last()) {
      seconds.push_back(op.end_s - op.begin_s);
    }
    cost = refined(std::move(cost), step.plan, seconds);
  }
  if (ranks_.world() != nullptr) {
    agree_on_cost(cost, *ranks_.world());
  }
  const double before = plans_.report(settings_.micro_batches).seconds;
  if (plans_.refine(settings_.micro_batches, std::move(cost))) {
    require_same_plan(ranks_, plans_, settings_.micro_batches);
    tell(fmt::format(
        "planned anew with measured seconds: {}, {:.3f} s a step (predicted {:.3f} s before)",
        plans_.choice(settings_.micro_batches).policy,
        plans_.report(settings_.micro_batches).seconds,
        before));
  }
}

void Monitor::fit_to_free_memory() {
  const int64_t promised = plans_.report(settings_.micro_batches).peak(TierId::kDevice);
  int64_t missing = std::max<int64_t>(
      0, promised - memory_.total().live - settings_.available() / ranks_.here().ranks);
  if (ranks_.world() != nullptr) {
    ranks_.world()->all_reduce(at::from_blob(&missing, {1}, at::kLong), ReduceOp::kMax).wait();
  }
  if (missing > 0 && plans_.tighten(settings_.micro_batches, missing)) {
    require_same_plan(ranks_, plans_, settings_.micro_batches);
    tell(fmt::format(
        "the machine has {} less than the plan wants: planned anew for {}",
        format_bytes(missing),
        format_bytes(plans_.report(settings_.micro_batches).peak(TierId::kDevice))));
  }
}

void Monitor::tell(const std::string& text) const {
  for (Observer* observer : observers_) {
    observer->note(text);
  }
}

} // namespace palimpsest
