#include <palimpsest/memory/planners/chain_run.h>

#include <palimpsest/core/base/error.h>

#include <utility>

namespace palimpsest {
namespace {

/// Runs a plan: the tree of decisions in order, each operation counted as it is written down.
class Runner {
 public:
  explicit Runner(const CostChain& chain)
      : chain_(chain), outputs_(chain.stages.size(), 0), tapes_(chain.stages.size(), -1) {
    live_.input = chain.input_bytes;
  }

  ChainRun run(const Segments& segments) {
    const Segments all = complete(segments, {0, chain_.size()});
    forward(all);
    loss();
    backward(all);
    return std::move(run_);
  }

 private:
  const ChainStage& at(int stage) const {
    return chain_.stages[static_cast<size_t>(stage)];
  }

  /// With full tapes for the stages in no segment.
  static Segments complete(const Segments& segments, BlockRange stages) {
    Segments all;
    int next = stages.begin;
    for (const Segment& segment : segments) {
      check(segment.blocks.begin >= next && !segment.blocks.empty(), "segments are out of order");
      if (next < segment.blocks.begin) {
        all.push_back({{next, segment.blocks.begin}, TapeMode::kFull, {}});
      }
      all.push_back(segment);
      next = segment.blocks.end;
    }
    check(next <= stages.end, "segments reach stage {} of {}", next, stages.end);
    if (next < stages.end) {
      all.push_back({{next, stages.end}, TapeMode::kFull, {}});
    }
    return all;
  }

  /// `unread`: a stage whose output nobody reads, or -1.
  void forward(const Segments& segments, int unread = -1) {
    for (const Segment& segment : segments) {
      const bool taped = segment.tape != TapeMode::kNone;
      for (int stage = segment.blocks.begin; stage < segment.blocks.end; ++stage) {
        const ChainOpKind untaped =
            stage == segment.blocks.begin ? ChainOpKind::kKeepInput : ChainOpKind::kConsumeInput;
        taped ? forward_taped(stage, segment.tape, chain_.spares_unread && stage == unread)
              : forward_untaped(stage, untaped);
      }
    }
  }

  void backward(const Segments& segments) {
    for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
      if (segment->tape == TapeMode::kNone) {
        const Segments again = complete(segment->rerun, segment->blocks);
        if (again.back().tape == TapeMode::kNone) { // waits for its own turn
          forward({again.begin(), again.end() - 1});
        } else {
          forward(again, segment->blocks.end - 1);
        }
        backward(again);
        continue;
      }
      for (int stage = segment->blocks.end - 1; stage >= segment->blocks.begin; --stage) {
        backward(stage);
      }
    }
  }

  void forward_untaped(int stage, ChainOpKind kind) {
    ChainBytes during = live_;
    during.outputs += at(stage).output_bytes;
    during.workspace = at(stage).forward_workspace;
    note({kind, stage}, during, at(stage).forward_seconds);
    if (kind == ChainOpKind::kConsumeInput) {
      drop_output(stage - 1);
    }
    outputs_[static_cast<size_t>(stage)] = at(stage).output_bytes;
    live_.outputs += at(stage).output_bytes;
  }

  void forward_taped(int stage, TapeMode tape, bool unread) {
    const int option = at(stage).option_of(tape);
    const TapeOption& chosen = at(stage).tapes[static_cast<size_t>(option)];
    live_.tapes += chosen.bytes;
    ChainBytes during = live_;
    during.tapes -= unread ? at(stage).output_bytes : 0;
    during.workspace = chosen.forward_workspace;
    const double spared = unread ? chosen.value_seconds : 0;
    note({ChainOpKind::kTape, stage, option}, during, at(stage).forward_seconds - spared);
    tapes_[static_cast<size_t>(stage)] = option;
  }

  void loss() {
    const int last = chain_.size();
    live_.gradients = chain_.input_of(last) + chain_.loss_gradient_bytes;
    ChainBytes during = live_;
    during.workspace = chain_.loss_workspace;
    note({ChainOpKind::kLoss, last}, during, chain_.loss_seconds);
    drop_output(last - 1);
  }

  void backward(int stage) {
    const int option = tapes_[static_cast<size_t>(stage)];
    const TapeOption& tape = at(stage).tapes[static_cast<size_t>(option)];
    ChainBytes during = live_;
    live_.gradients += at(stage).gradient_bytes;
    during.gradients = live_.gradients + chain_.input_of(stage);
    during.workspace = tape.backward_workspace;
    note({ChainOpKind::kBackward, stage, option}, during, tape.backward_seconds);
    live_.gradients += chain_.input_of(stage) - at(stage).output_bytes;
    live_.tapes -= tape.bytes;
    drop_output(stage - 1);
  }

  /// What stands by itself; a tape contains its stage's output.
  void drop_output(int stage) {
    if (stage >= 0) {
      live_.outputs -= outputs_[static_cast<size_t>(stage)];
      outputs_[static_cast<size_t>(stage)] = 0;
    }
  }

  void note(ChainOp op, const ChainBytes& during, double seconds) {
    if (during.total() > run_.peak) {
      run_.peak = during.total();
      run_.peak_operation = run_.operations.size();
      run_.at_peak = during;
    }
    run_.operations.push_back(op);
    run_.makespan += seconds;
  }

  const CostChain& chain_;
  ChainBytes live_;
  std::vector<int64_t> outputs_; // standalone bytes by stage
  std::vector<int> tapes_; // option by stage
  ChainRun run_;
};

} // namespace

std::string_view to_text(ChainOpKind kind) {
  switch (kind) {
    case ChainOpKind::kKeepInput:
      return "Fck";
    case ChainOpKind::kConsumeInput:
      return "Fnull";
    case ChainOpKind::kTape:
      return "Fall";
    case ChainOpKind::kLoss:
      return "LOSS";
    case ChainOpKind::kBackward:
      return "B";
  }
  return "?";
}

ChainRun run_chain(const CostChain& chain, const Segments& segments) {
  return Runner(chain).run(segments);
}

} // namespace palimpsest
