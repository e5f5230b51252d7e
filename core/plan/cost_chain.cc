#include <palimpsest/core/plan/cost_chain.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/job.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace palimpsest {
namespace {

void check_bytes(const std::string& owner, const char* what, int64_t bytes, int64_t least = 0) {
  if (bytes < least || bytes > kLargestBytes) {
    throw UserError(
        "{}: its {} of {} bytes is not allowed; give {} to {}",
        owner,
        what,
        bytes,
        least,
        kLargestBytes);
  }
}

void check_seconds(const std::string& owner, const char* what, double seconds) {
  if (!(seconds >= 0 && seconds <= kLargestSeconds)) { // so NaN is refused too
    throw UserError(
        "{}: its {} of {} seconds is not allowed; give 0 to {}",
        owner,
        what,
        seconds,
        kLargestSeconds);
  }
}

void validate_stage(const ChainStage& stage, int64_t input_bytes, const std::string& name) {
  check_bytes(name, "output", stage.output_bytes);
  check_bytes(name, "forward workspace", stage.forward_workspace);
  check_bytes(name, "gradients", stage.gradient_bytes);
  check_seconds(name, "forward", stage.forward_seconds);
  if (stage.tapes.empty()) {
    throw UserError("{}: no tape is given; a backward needs one", name);
  }
  double lean_seconds = kLargestSeconds;
  double full_seconds = 0;
  for (const TapeOption& option : stage.tapes) {
    check_bytes(name, "tape", option.bytes);
    check_bytes(name, "forward workspace with a tape", option.forward_workspace);
    const int64_t least = -option.bytes - input_bytes; // a gradient that nobody wants
    check_bytes(name, "backward workspace", option.backward_workspace, least);
    check_seconds(name, "backward", option.backward_seconds);
    check_seconds(name, "forward's output", option.value_seconds);
    if (option.value_seconds > stage.forward_seconds) {
      throw UserError(
          "{}: its output takes {} s of a forward of {} s",
          name,
          option.value_seconds,
          stage.forward_seconds);
    }
    if (option.bytes < stage.output_bytes) {
      throw UserError(
          "{}: its tape of {} bytes is smaller than its output of {}, which it contains",
          name,
          option.bytes,
          stage.output_bytes);
    }
    const auto same = [&](const TapeOption& other) { return other.tape == option.tape; };
    if (option.tape == TapeMode::kNone ||
        std::count_if(stage.tapes.begin(), stage.tapes.end(), same) > 1) {
      throw UserError("{}: its tapes must be one full, one lean, or both", name);
    }
    (option.tape == TapeMode::kLean ? lean_seconds : full_seconds) = option.backward_seconds;
  }
  if (lean_seconds < full_seconds) {
    throw UserError(
        "{}: its backward is faster from the lean tape ({} s) than from the full one ({} s)",
        name,
        lean_seconds,
        full_seconds);
  }
}

/// What a chain is made from: one model's data flow.
class Maker {
 public:
  explicit Maker(const Job& job)
      : job_(job), model_(job.model()), gradients_(model_.blocks.size()) {
    for (int unit = 0; unit < static_cast<int>(model_.units.size()); ++unit) {
      add_gradient(unit);
    }
  }

  CostChain make() {
    const int terminal = model_.terminal();
    int first = 0;
    while (first < terminal && !job_.differentiable(first)) {
      ++first;
    }
    CostChain chain{.input_bytes = input_bytes(first), .spares_unread = true};
    for (int block = first; block < terminal; ++block) {
      chain.stages.push_back(stage(block, block == first ? chain.input_bytes : 0));
    }
    const BlockCost& loss = model_.blocks[static_cast<size_t>(terminal)];
    chain.loss_seconds = loss.forward_seconds;
    const Gradients& gradients = gradients_[static_cast<size_t>(terminal)];
    chain.loss_workspace =
        loss.forward_workspace.full + carried_ + skip_gradients(terminal) + gradients.passing;
    chain.loss_gradient_bytes = gradients.staying;
    return chain;
  }

 private:
  /// Of the weights that a block is the first to have a gradient for.
  struct Gradients {
    int64_t staying = 0;
    int64_t passing = 0; // whole ones, until they are reduced to shards
  };

  void add_gradient(int unit) {
    const std::vector<int>& blocks = job_.users(unit);
    if (blocks.empty() || model_.units[static_cast<size_t>(unit)].frozen) {
      return;
    }
    Gradients& gradients = gradients_[static_cast<size_t>(blocks.back())];
    const Slot kept = job_.gradient(unit);
    const bool once = job_.micro_batches() == 1;
    if (kept.kind == SlotKind::kGradShard && (once || job_.placement().shards_gradients())) {
      const int64_t whole = job_.size({.kind = SlotKind::kGradBuffer, .owner = unit});
      const bool tied = blocks.size() > 1; // so it waits for the other block
      (tied ? gradients.staying : gradients.passing) += whole;
    }
    gradients.staying += once ? job_.size(kept) : 0;
  }

  int64_t bytes(ValueRef value) const {
    return model_.blocks[static_cast<size_t>(value.producer)]
        .value_bytes[static_cast<size_t>(value.index)];
  }

  int last_reader(ValueRef value) const {
    const std::vector<int>& readers = job_.readers(value);
    return readers.empty() ? value.producer : readers.back();
  }

  bool skips(ValueRef value) const {
    return last_reader(value) > value.producer + 1;
  }

  /// The micro-batch, and what blocks without a BACKWARD write for those from `first` on.
  int64_t input_bytes(int first) const {
    int64_t sum = model_.batch_bytes;
    for (int block = 0; block < first; ++block) {
      for (const int index : job_.read_values(block)) {
        sum += last_reader({block, index}) >= first ? bytes({block, index}) : 0;
      }
    }
    return sum;
  }

  /// Of a value that skips blocks. Its last reader's BACKWARD begins its gradient, which may live
  /// as long as the value where an earlier reader still needs it.
  int64_t skip_bytes(ValueRef value) const {
    return job_.readers(value).size() > 1 ? 2 * bytes(value) : bytes(value);
  }

  /// The gradients that begin in this block's BACKWARD, beside its input's and those above.
  int64_t skip_gradients(int block) const {
    int64_t sum = 0;
    for (const ValueRef value : job_.graded_reads(block)) {
      sum += skips(value) && job_.readers(value).size() == 1 ? bytes(value) : 0;
    }
    return sum;
  }

  /// `no_gradient`: bytes of the input that the model of a chain gives a gradient and we do not.
  ChainStage stage(int number, int64_t no_gradient) {
    const BlockCost& block = model_.blocks[static_cast<size_t>(number)];
    const Gradients& gradients = gradients_[static_cast<size_t>(number)];
    ChainStage result{.name = block.name, .forward_seconds = block.forward_seconds};
    result.gradient_bytes = gradients.staying;
    result.blocks = {number, number + 1};
    for (const int index : job_.read_values(number)) {
      const ValueRef value{number, index};
      result.output_bytes += skips(value) ? 0 : bytes(value);
      carried_ += skips(value) ? skip_bytes(value) : 0;
    }
    result.forward_workspace = block.forward_workspace.none + carried_;
    // When a stage's BACKWARD runs we have dropped its output already.
    const int64_t less = result.output_bytes + no_gradient;
    const auto option = [&](TapeMode tape, int64_t own, int64_t forward, int64_t backward) {
      const bool lean = tape == TapeMode::kLean;
      result.tapes.push_back(
          {.tape = tape,
           .bytes = own + result.output_bytes,
           .forward_workspace = forward + carried_,
           .backward_workspace =
               backward + gradients.passing + carried_ + skip_gradients(number) - less,
           .backward_seconds =
               block.input_seconds + block.weight_seconds + (lean ? block.lean_seconds : 0),
           .value_seconds = block.value_seconds.of(tape)});
    };
    option(
        TapeMode::kFull,
        block.full_bytes,
        block.forward_workspace.full,
        block.backward_workspace.full);
    if (block.lean_bytes < block.full_bytes) {
      option(
          TapeMode::kLean,
          block.lean_bytes,
          block.forward_workspace.lean,
          block.backward_workspace.lean);
    }
    return result;
  }

  const Job& job_;
  const ModelCost& model_;
  std::vector<Gradients> gradients_; // by block
  int64_t carried_ = 0; // of values read beyond the next block, so far
};

} // namespace

int ChainStage::option_of(TapeMode tape) const {
  const auto found = std::find_if(
      tapes.begin(), tapes.end(), [&](const TapeOption& option) { return option.tape == tape; });
  return found == tapes.end() ? 0 : static_cast<int>(found - tapes.begin());
}

void CostChain::validate() const {
  check_bytes("the chain", "input", input_bytes);
  for (int number = 0; number < size(); ++number) {
    const ChainStage& stage = stages[static_cast<size_t>(number)];
    validate_stage(
        stage,
        input_of(number),
        stage.name.empty() ? fmt::format("stage {}", number + 1)
                           : fmt::format("stage {} ({})", number + 1, stage.name));
  }
  check_bytes("the loss", "workspace", loss_workspace);
  check_bytes("the loss", "gradients", loss_gradient_bytes);
  check_seconds("the loss", "time", loss_seconds);
}

CostChain chain_of(const Job& job) {
  return Maker(job).make();
}

CostChain chain_of(const ModelCost& model) {
  return chain_of(Job({.model = model, .stages = {{0, static_cast<int>(model.blocks.size())}}}));
}

Segments block_segments(const Segments& stage_segments, const CostChain& chain) {
  Segments result;
  const auto at = [&](int number) -> const ChainStage& {
    return chain.stages[static_cast<size_t>(number)];
  };
  for (const auto& [stages, tape, rerun] : stage_segments) {
    if (tape == TapeMode::kNone) {
      const BlockRange blocks{at(stages.begin).blocks.begin, at(stages.end - 1).blocks.end};
      result.push_back({blocks, tape, block_segments(rerun, chain)});
      continue;
    }
    for (int number = stages.begin; number < stages.end; ++number) {
      const ChainStage& stage = at(number);
      const TapeMode left = stage.tape_of(tape).tape;
      if (number > stages.begin && result.back().tape == left) {
        result.back().blocks.end = stage.blocks.end;
      } else {
        result.push_back({stage.blocks, left, {}});
      }
    }
  }
  return result;
}

Segments stage_segments(const Segments& block_segments, const CostChain& chain) {
  Segments result;
  const int first = chain.stages.empty() ? 0 : chain.stages.front().blocks.begin;
  for (const auto& [blocks, tape, rerun] : block_segments) {
    const BlockRange stages{
        std::max(blocks.begin - first, 0), std::min(blocks.end - first, chain.size())};
    if (stages.begin < stages.end) {
      result.push_back({stages, tape, stage_segments(rerun, chain)});
    }
  }
  return result;
}

} // namespace palimpsest
