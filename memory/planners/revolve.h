#pragma once

// Binomial checkpointing in closed form, and as a plan.
//
//   revolve_advances(10, 3);                           // 15: FORWARDs without a tape
//   Segments segments = revolve_segments({0, 10}, 3, TapeMode::kFull);
//
// For `steps` equal steps and `kept` inputs at once, that of the first step included, one tape at a
// time: (kept + r) over kept steps can be done with each step run at most r times before its last,
// where r is the repetition. (Griewank and Walther 2000, Algorithm 799.)

#include <palimpsest/core/plan/segment.h>

#include <cstdint>

namespace palimpsest {

/// The least r with (kept + r) over kept >= steps. Both at least 1.
int revolve_repetition(int steps, int kept);

/// Fewest FORWARDs that leave no tape: r steps - (kept + r) over (kept + 1). With the last run of
/// each step, which leaves its tape, `steps` more.
int64_t revolve_advances(int steps, int kept);

/// A plan with so many.
Segments revolve_segments(BlockRange stages, int kept, TapeMode tape);

} // namespace palimpsest
