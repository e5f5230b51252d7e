#pragma once

// A model as planners of recomputation see it: stages in a row that end in the loss, and what each
// costs to run, to keep and to run back.
//
//   const CostChain chain = chain_of(job);
//   const ChainPlan plan = find_planner("dynamic_programming").plan(chain, budget);   // memory/planners
//   options.segments = block_segments(plan.segments, chain);
//
// Stage l reads the output of stage l - 1 and writes a_l bytes. Its FORWARD either leaves nothing
// but its output, or a tape of abar_l bytes that contains the output. Its BACKWARD needs the tape,
// the input and the gradient of the output, which has a_l bytes too. The chain's input a_0 is
// always there. At every operation live are a_0, all kept outputs and tapes, the one gradient, what
// the operation writes and its workspace. (Beaumont et al. 2019, arXiv:1911.13214.) Two things more
// than the paper's: a stage's BACKWARD may leave the gradients of its weights, which stay to the
// end, so that there is less room the further back a step is; and a FORWARD that leaves a tape for
// the very next BACKWARD may spare its output, which nobody reads.

#include <palimpsest/core/plan/cost_model.h>
#include <palimpsest/core/plan/op.h>
#include <palimpsest/core/plan/segment.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest {

class Job;

/// One way to keep what a stage's BACKWARD needs.
struct TapeOption {
  TapeMode tape = TapeMode::kFull; ///< lean or full
  int64_t bytes = 0; ///< abar: of the tape, the stage's output included
  int64_t forward_workspace = 0;
  int64_t backward_workspace =
      0; ///< negative where BACKWARD needs less than the tape, as without the output
  double backward_seconds = 0;
  double value_seconds =
      0; ///< of the stage's forward, what is spared with an output that nobody reads

  bool operator==(const TapeOption&) const = default;
};

struct ChainStage {
  std::string name{};
  int64_t output_bytes = 0; ///< a
  double forward_seconds = 0;
  int64_t forward_workspace = 0; ///< where no tape is left
  std::vector<TapeOption> tapes{}; ///< at least one, at most one of each mode
  int64_t gradient_bytes = 0; ///< of its weights, from its BACKWARD to the end
  BlockRange blocks{}; ///< of the model; empty where the chain came without one

  /// The index of the tape of this mode, of the first one where there is none.
  int option_of(TapeMode tape) const;
  const TapeOption& tape_of(TapeMode tape) const {
    return tapes[static_cast<size_t>(option_of(tape))];
  }
};

struct CostChain {
  int64_t input_bytes = 0; ///< a_0
  std::vector<ChainStage> stages{};
  double loss_seconds = 0; ///< of the loss and its gradient
  int64_t loss_workspace = 0;
  int64_t loss_gradient_bytes = 0; ///< of the loss's weights, from then on
  bool spares_unread = false; ///< a FORWARD whose BACKWARD is next writes no output

  int size() const {
    return static_cast<int>(stages.size());
  }
  /// Of what a stage reads; stage size() is the loss.
  int64_t input_of(int stage) const {
    return stage == 0 ? input_bytes : stages[static_cast<size_t>(stage) - 1].output_bytes;
  }

  /// Throws UserError naming the stage and the number that is negative, not finite, missing, or
  /// larger than kLargestBytes (kLargestSeconds), a tape smaller than its output, a lean tape whose
  /// BACKWARD is the faster one.
  void validate() const;
};

/// Sums of a whole chain then stay exact in 64 bits, and in the doubles of a chain's file.
inline constexpr int64_t kLargestBytes = int64_t{1} << 50;
inline constexpr double kLargestSeconds = 1e9;

/// A stage a block, from the first block that has a BACKWARD to the last before the terminal one,
/// which is the loss. A value that is read beyond the next block (a U-Net's skip) is live until
/// then whatever a plan recomputes, so it is workspace of every stage from its writer on. A unit's
/// gradient belongs to the last block that uses it; where it is sharded the whole one is workspace,
/// unless another block adds to it. With several micro-batches gradients are there all the time.
/// Sizes never lie below what simulate() will find. Outside of the chain are the states (parameters,
/// optimizer, gradients that are always there), the workspace of UPDATE, what communication needs
/// besides a whole gradient, and the seconds of blocks before the first stage.
CostChain chain_of(const Job& job);

/// Of a step of one micro-batch in one process.
CostChain chain_of(const ModelCost& model);

/// From segments of stages to segments of the model's blocks; a stage without the tape asked for
/// leaves its other one.
Segments block_segments(const Segments& stage_segments, const CostChain& chain);

/// The way back: from segments of the model's blocks to what they leave of the chain's stages.
/// `chain`: of a model.
Segments stage_segments(const Segments& block_segments, const CostChain& chain);

} // namespace palimpsest
