#include <palimpsest/memory/planners/revolve.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/memory/planners/candidates.h>
#include <palimpsest/memory/planners/chain_parts.h>
#include <palimpsest/memory/planners/planner.h>

#include <algorithm>

namespace palimpsest {
namespace {

/// n over k, or some number above `limit` where it is above.
int64_t binomial(int64_t n, int64_t k, int64_t limit) {
  if (k < 0 || k > n) {
    return 0;
  }
  int64_t result = 1;
  k = std::min(k, n - k);
  for (int64_t factor = 1; factor <= k && result <= limit; ++factor) {
    result = result * (n - k + factor) / factor;
  }
  return result;
}

/// The most steps that may lie before the next kept input. They may run r - 1 times before their
/// last with all inputs, those after it r times with one input less: so there are at most
/// (kept + r - 1) over kept of the first kind, and enough of the second that they need r at all.
int steps_before_split(int steps, int kept) {
  const int64_t r = revolve_repetition(steps, kept);
  const int64_t first = binomial(kept + r - 1, kept, steps);
  const int64_t second = binomial(kept + r - 2, kept - 1, steps);
  return static_cast<int>(std::clamp<int64_t>(steps - second, 1, first));
}

} // namespace

int revolve_repetition(int steps, int kept) {
  check(steps >= 1 && kept >= 1, "revolve of {} steps with {} inputs", steps, kept);
  int repetition = 0;
  while (binomial(int64_t{kept} + repetition, kept, steps) < steps) {
    ++repetition;
  }
  return repetition;
}

int64_t revolve_advances(int steps, int kept) {
  const int64_t r = revolve_repetition(steps, kept);
  const int64_t all = r * steps;
  return all - binomial(kept + r, int64_t{kept} + 1, all);
}

Segments revolve_segments(BlockRange stages, int kept, TapeMode tape) {
  Segments segments;
  for (int left = kept; stages.size() > 1; --left) {
    const int split = stages.begin + steps_before_split(stages.size(), left);
    const BlockRange again{stages.begin, split};
    append_part(segments, {again, TapeMode::kNone, revolve_segments(again, left, tape)});
    stages.begin = split;
  }
  if (!stages.empty()) {
    append_part(segments, {stages, tape, {}});
  }
  return segments;
}

ChainPlan revolve(const CostChain& chain, int64_t budget) {
  Candidates candidates(chain, budget);
  for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
    for (int kept = std::max(chain.size(), 1); kept >= 1; --kept) {
      candidates.consider(revolve_segments({0, chain.size()}, kept, tape));
    }
  }
  return candidates.fastest("revolve");
}

} // namespace palimpsest
