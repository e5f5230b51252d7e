#pragma once

// Pipeline schedules: in which order a rank computes the micro-batches of its stages.
//
//   const Schedule& schedule = find_schedule("1f1b");
//   schedule.turns(rank, ranks, micro_batches);
//
// Adding one is one function and one line in schedules(). With one rank, 1f1b is gradient
// accumulation.

#include <palimpsest/core/plan/schedule.h>

#include <string_view>
#include <vector>

namespace palimpsest {

/// All forwards, then all backwards: every micro-batch in flight at once. (GPipe, Huang et al.
/// 2019.)
Schedule gpipe();

/// One forward, one backward: at most ranks - rank micro-batches in flight. (PipeDream-Flush,
/// Narayanan et al. 2021.)
Schedule one_forward_one_backward();

/// Interleaved 1F1B: stage = chunk * ranks + rank, micro-batches in groups of `ranks`; the bubble
/// shrinks by `chunks` where `ranks` divides the micro-batches. (Megatron-LM, Narayanan et al.
/// 2021.)
Schedule interleaved(int chunks = 2);

/// 1F1B whose weight gradients run `rank` micro-batches later, which keeps 1F1B's tapes in flight
/// and a third of its bubble. (ZB-H1, Qi et al. 2023.)
Schedule zero_bubble_h1();

/// All of the above, by name: gpipe, 1f1b, interleaved, zb_h1.
std::vector<Schedule> schedules();

/// Throws UserError listing the names.
Schedule find_schedule(std::string_view name);

} // namespace palimpsest
