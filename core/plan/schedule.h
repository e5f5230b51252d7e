#pragma once

// The contract of schedules: who computes what in which order.
//
//   std::vector<Turn> turns = schedule.turns(rank, ranks, micro_batches);
//   StepPlan plan = schedule_plan(turns, job);            // parallel/pipeline: the compute-only plan
//
// A schedule knows no block: stage s sits on pipeline rank s % ranks, and there are `chunks` stages
// a rank.

#include <functional>
#include <string>
#include <vector>

namespace palimpsest {

enum class Work : unsigned char { kForward, kBackward, kBackwardInput, kBackwardWeight };

/// One stage's work on one micro-batch.
struct Turn {
  Work work = Work::kForward;
  int stage = 0;
  int mb = 0;

  bool operator==(const Turn&) const = default;
};

struct Schedule {
  std::string name;
  std::string help; ///< one line
  int chunks = 1; ///< stages a rank
  std::function<std::vector<Turn>(int rank, int ranks, int micro_batches)> turns;
};

} // namespace palimpsest
