#pragma once

// What checkpointing a uniform chain costs and saves, and what each rank holds of a sharded model,
// in closed form: checks on simulate(), and what `plan` prints.
//
//   executions(12, 3);                       // 33: 12 forwards, 12 backwards, 9 reruns
//   best_interval(16, 1, 1);                 // 4: the square root
//
// Chain of N layers, each with `activations` bytes of tape and an input of `input` bytes; K of them
// keep their tapes.

#include <palimpsest/core/plan/job.h>

#include <cstdint>

namespace palimpsest {

/// Bytes of a model's three states on one rank.
struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;

  double total() const {
    return parameters + gradients + optimizer;
  }
};

/// What is left of the whole model's states on each of `ranks` of a shard group, padding aside: all
/// of what the placement keeps whole, 1 / ranks of what it shards. (Rajbhandari et al. 2020,
/// arXiv:1910.02054, table 1.)
StateBytes bytes_per_rank(const StateBytes& whole, const Placement& placement, int ranks);

/// Layer executions of a step, forward and backward: 2N with all tapes, 3N - K with K kept.
int64_t executions(int layers, int kept);

/// Bytes of tapes at the peak: N * a without recomputation, K * a with the last K kept (one layer's
/// at least, while it runs again).
int64_t tape_bytes(int kept, int64_t activations);

/// K / N: tapes with K layers kept over tapes with all.
double tape_ratio(int layers, int kept);

/// Bytes at the peak where every `interval`-th input is kept: the inputs of all segments and one
/// segment's tapes, ceil(N / interval) * input + interval * activations.
int64_t interval_bytes(int layers, int interval, int64_t input, int64_t activations);

/// The smallest interval with the fewest interval_bytes; near sqrt(N * input / activations), so
/// sqrt(N) where an input is as large as a tape. (Chen et al. 2016, arXiv:1604.06174.)
int best_interval(int layers, int64_t input, int64_t activations);

} // namespace palimpsest
