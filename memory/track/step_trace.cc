#include <palimpsest/memory/track/step_trace.h>

namespace palimpsest {

void StepTrace::op_begin(size_t index, const Op& /*op*/) {
  if (index == 0) {
    ops_.clear();
    start_ = std::chrono::steady_clock::now();
  }
  memory_.begin_interval();
  ops_.push_back({.begin_s = now()});
}

void StepTrace::op_end(size_t /*index*/, const Op& /*op*/) {
  ops_.back().end_s = now();
  ops_.back().peak_bytes = memory_.interval_peak();
}

void StepTrace::step_end(const StepRecord& record) {
  if (ops_.size() == full_ && !record.skipped) {
    last_.swap(ops_);
    record_ = record;
  }
  ops_.clear();
}

double StepTrace::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

} // namespace palimpsest
