#include <palimpsest/memory/track/tracker.h>

#include <algorithm>

namespace palimpsest {

void MemoryTracker::op_begin(size_t index, const Op& /*op*/) {
  if (index == 0) {
    ops_.clear();
  }
  memory_.begin_interval();
}

void MemoryTracker::op_end(size_t /*index*/, const Op& /*op*/) {
  ops_.push_back({.peak = memory_.interval_peak(), .live_after = memory_.total().live});
}

int64_t MemoryTracker::peak() const {
  int64_t highest = 0;
  for (const OpBytes& op : ops_) {
    highest = std::max(highest, op.peak);
  }
  return highest;
}

} // namespace palimpsest
