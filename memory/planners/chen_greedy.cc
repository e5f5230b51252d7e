#include <palimpsest/memory/planners/candidates.h>
#include <palimpsest/memory/planners/planner.h>

namespace palimpsest {
namespace {

/// A run of stages ends before its tapes would exceed the share.
Segments walk(const CostChain& chain, TapeMode tape, int64_t share, bool keep_last) {
  Segments segments;
  int begin = 0;
  int64_t filled = 0;
  for (int stage = 0; stage < chain.size(); ++stage) {
    const int64_t bytes = chain.stages[static_cast<size_t>(stage)].tape_of(tape).bytes;
    if (stage > begin && filled + bytes > share) {
      segments.push_back(recomputed({begin, stage}, tape));
      begin = stage;
      filled = 0;
    }
    filled += bytes;
  }
  const BlockRange last{begin, chain.size()};
  segments.push_back(keep_last ? Segment{last, tape, {}} : recomputed(last, tape));
  return segments;
}

} // namespace

ChainPlan chen_greedy(const CostChain& chain, int64_t budget) {
  Candidates candidates(chain, budget);
  for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
    // A share matters only where it closes another first run.
    int64_t share = 0;
    for (const ChainStage& stage : chain.stages) {
      share += stage.tape_of(tape).bytes;
      candidates.consider(walk(chain, tape, share, true));
      candidates.consider(walk(chain, tape, share, false));
    }
  }
  return candidates.fastest("chen_greedy");
}

} // namespace palimpsest
