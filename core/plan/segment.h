#pragma once

// A planner's decision for a run of blocks: which tape their FORWARD leaves.
//
//   Segment kept_lean{{1, 3}, TapeMode::kLean, {}};
//   Segment again = recomputed({3, 7});           // no tape; runs again, with full tapes, before its BACKWARD
//
// Without a tape the blocks run again before their BACKWARD, as `rerun` says, which may again leave
// parts for later: decisions are a tree, so nested reruns (Revolve) need no other mechanism. Blocks
// in no segment keep full tapes.

#include <palimpsest/core/plan/cost_model.h>
#include <palimpsest/core/plan/op.h>

#include <vector>

namespace palimpsest {

struct Segment {
  BlockRange blocks{};
  TapeMode tape = TapeMode::kFull;
  std::vector<Segment> rerun{}; ///< in order; covers `blocks` where tape is kNone, else empty

  bool operator==(const Segment&) const = default;
};

using Segments = std::vector<Segment>;

/// Blocks that leave no tape and run again as one before their BACKWARD, then leaving `tape`.
inline Segment recomputed(BlockRange blocks, TapeMode tape = TapeMode::kFull) {
  return {blocks, TapeMode::kNone, {{blocks, tape, {}}}};
}

} // namespace palimpsest
