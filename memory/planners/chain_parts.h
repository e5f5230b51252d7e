#pragma once

// What planners that cut a chain into parts share: the loss as one more stage, what a part needs at
// least, and decisions written as segments.
//
//   const CostChain chain = loss_as_stage(given);
//   const LiveGradients gradients(chain);
//   tape_need(chain, gradients, s, t, option)         // bytes to leave a tape of s, and to use it at the end
//   Segments segments = segments_of(chain, budget, choose);
//
// Bytes are those beside the input of stage s, while the gradient of the output of t and those of
// all later weights are live.

#include <palimpsest/core/plan/cost_chain.h>

#include <cstdint>
#include <vector>

namespace palimpsest {

/// The loss becomes a stage that writes nothing, whose BACKWARD makes the first gradient.
CostChain loss_as_stage(const CostChain& chain);

/// Bytes of gradients once some last stages have run back.
class LiveGradients {
 public:
  explicit LiveGradients(const CostChain& chain);

  /// While the stages up to t wait: of t's output, and of the weights of all stages after t.
  int64_t after(int t) const {
    return from_[static_cast<size_t>(t + 1)];
  }

 private:
  std::vector<int64_t> from_; // by the first stage that has run back
};

/// FORWARD of s with this tape, and its BACKWARD after all later stages of s..t.
int64_t tape_need(
    const CostChain& chain,
    const LiveGradients& gradients,
    int s,
    int t,
    const TapeOption& option);

/// FORWARD of `stage` without a tape on the way from s; gradients not included.
int64_t forward_need(const CostChain& chain, int s, int stage);

/// What to do first with stages s..t: leave a tape of s, or keep the output of stage split - 1.
struct Choice {
  int option = -1; ///< index of a tape, or -1
  int split = 0; ///< s < split <= t
};

void append_part(Segments& segments, Segment part);

/// `choose(s, t, memory)` decides for stages s..t; `kept(bytes)` is what keeping takes of `memory`.
template <typename Memory, typename Choose, typename Kept>
Segments segments_of(
    const CostChain& chain,
    int s,
    int t,
    Memory memory,
    const Choose& choose,
    const Kept& kept) {
  Segments segments;
  while (s <= t) {
    const Choice choice = choose(s, t, memory);
    if (choice.option >= 0) {
      const TapeOption& option =
          chain.stages[static_cast<size_t>(s)].tapes[static_cast<size_t>(choice.option)];
      append_part(segments, {{s, s + 1}, option.tape, {}});
      memory -= kept(option.bytes);
      ++s;
    } else {
      append_part(
          segments,
          {{s, choice.split},
           TapeMode::kNone,
           segments_of(chain, s, choice.split - 1, memory, choose, kept)});
      memory -= kept(chain.input_of(choice.split));
      s = choice.split;
    }
  }
  return segments;
}

/// Without what was decided for the loss, and for the whole chain.
template <typename Memory, typename Choose, typename Kept>
Segments segments_of(
    const CostChain& chain_with_loss,
    Memory memory,
    const Choose& choose,
    const Kept& kept) {
  const int loss = chain_with_loss.size() - 1;
  Segments segments = segments_of(chain_with_loss, 0, loss, memory, choose, kept);
  if (--segments.back().blocks.end == segments.back().blocks.begin) {
    segments.pop_back();
  }
  return segments;
}

} // namespace palimpsest
