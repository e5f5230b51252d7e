#pragma once

// The pass of sharded parameters (ZeRO-3): GATHER and RELEASE around any compute that reads
// parameters, reruns included.
//
//   plans = gather_pass(plans, job, options);
//
// Up to `options.window` bytes are gathered ahead or stay gathered: what is needed soonest, as far
// as it fits; one operation's own units always do. So a window of two blocks' units hides a gather
// behind the block before, and one for all gathers each unit once in a step. Nothing to do where
// parameters are whole.

#include <palimpsest/core/plan/plan_pass.h>

namespace palimpsest {

/// Bytes of the parameters of the largest run of `blocks` consecutive blocks of a pipeline rank: as
/// a window, it lets the next ones' parameters arrive while one computes. `blocks` >= 1.
int64_t window_of_blocks(const Job& job, int blocks);

/// The window of steps whose user says nothing: one block computes, the next one's parameters
/// arrive, and a rerun of two blocks keeps both for their backward.
inline constexpr int kPrefetchedBlocks = 3;

Plans gather_pass(const Plans& plans, const Job& job, const PlanOptions& options);

} // namespace palimpsest
