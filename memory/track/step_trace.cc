#include <palimpsest/memory/track/step_trace.h>

namespace palimpsest {

void StepTrace::op_begin(size_t index, const Op& op) {
  if (index == 0) { // also where a step is run again
    ops_.clear();
    loads_ = 0;
    start_ = std::chrono::steady_clock::now();
  }
  loads_ += op.kind == OpKind::kLoad;
  memory_.begin_interval();
  ops_.push_back({.begin_s = now()});
}

void StepTrace::op_end(size_t /*index*/, const Op& /*op*/) {
  ops_.back().end_s = now();
  ops_.back().peak_bytes = memory_.interval_peak();
}

void StepTrace::step_end(const StepRecord& record) {
  if (loads_ == micro_batches_ && !record.skipped) {
    last_.swap(ops_);
    record_ = record;
  }
  ops_.clear();
}

double StepTrace::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

} // namespace palimpsest
