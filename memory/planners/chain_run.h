#pragma once

// What a plan for a chain does, operation by operation, and what that takes.
//
//   const ChainRun run = run_chain(chain, segments);
//   run.makespan, run.peak                              // seconds, bytes
//   to_text(run.operations[0])                          // "Fck 1"
//
// The bytes are those of the chain's own model (cost_chain.h); replay.h gets the same from
// simulate().

#include <palimpsest/core/plan/cost_chain.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// Fck: FORWARD that keeps its input, to run again from it. Fnull: FORWARD that consumes its input.
/// Fall: FORWARD that leaves a tape. Then the loss, and BACKWARD. (The names of Beaumont et al.)
enum class ChainOpKind : uint8_t { kKeepInput, kConsumeInput, kTape, kLoss, kBackward };

/// "Fck", "Fnull", "Fall", "LOSS", "B".
std::string_view to_text(ChainOpKind kind);

struct ChainOp {
  ChainOpKind kind = ChainOpKind::kLoss;
  int stage = 0; ///< from 0; of the loss: the number of stages
  int option = -1; ///< index into ChainStage::tapes, of kTape and kBackward

  bool operator==(const ChainOp&) const = default;
};

/// Bytes live during one operation; they add up to total().
struct ChainBytes {
  int64_t input = 0;
  int64_t outputs = 0; ///< kept ones, and the one that the operation writes
  int64_t tapes = 0;
  int64_t gradients = 0;
  int64_t workspace = 0;

  int64_t total() const {
    return input + outputs + tapes + gradients + workspace;
  }
};

struct ChainRun {
  std::vector<ChainOp> operations;
  double makespan = 0; ///< seconds
  int64_t peak = 0; ///< bytes, the chain's input included
  size_t peak_operation = 0; ///< the first that needs so many
  ChainBytes at_peak{};
};

/// `segments`: of stages; stages in none of them keep full tapes. A stage that has no tape of the
/// mode asked for leaves its first one.
ChainRun run_chain(const CostChain& chain, const Segments& segments);

} // namespace palimpsest
