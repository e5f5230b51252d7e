#include <palimpsest/memory/recompute/recompute_pass.h>

#include <algorithm>

namespace palimpsest {
namespace {

/// The part of the decisions that concerns these blocks.
Segments clip(const Segments& segments, BlockRange blocks) {
  Segments result;
  for (const Segment& segment : segments) {
    const BlockRange run{
        std::max(segment.blocks.begin, blocks.begin), std::min(segment.blocks.end, blocks.end)};
    if (!run.empty()) {
      result.push_back({run, segment.tape, clip(segment.rerun, run)});
    }
  }
  return result;
}

const Segment* find(const Segments& segments, int block) {
  for (const Segment& segment : segments) {
    if (segment.blocks.contains(block)) {
      return &segment;
    }
  }
  return nullptr;
}

/// What a rerun of the segment must write again: what the segment reads, except what was sent to
/// another rank, whose receipt may not be known yet.
ValueSet yields_again(int block, BlockRange segment, const Job& job) {
  ValueSet yields;
  for (const int index : job.read_values(block)) {
    const auto& readers = job.readers({block, index});
    const bool read_here = std::any_of(
        readers.begin(), readers.end(), [&](int reader) { return segment.contains(reader); });
    const bool sent = std::any_of(readers.begin(), readers.end(), [&](int reader) {
      return job.home(reader) != job.home(block);
    });
    if (read_here && !sent) {
      yields.insert(index);
    }
  }
  return yields;
}

/// FORWARD of a segment that left no tape. A last part without a tape waits for its own turn.
void run_again(const Segment& segment, int mb, const Job& job, StepPlan& plan) {
  for (const Segment& part : segment.rerun) {
    if (&part == &segment.rerun.back() && part.tape == TapeMode::kNone) {
      return;
    }
    for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
      if (job.differentiable(block)) {
        plan.push_back(Op::forward(block, mb, part.tape, yields_again(block, segment.blocks, job)));
      }
    }
  }
}

/// What must run again before this block's BACKWARD.
void rerun_before(int block, int mb, const Segments& segments, const Job& job, StepPlan& plan) {
  const Segment* segment = find(segments, block);
  if (segment == nullptr || segment->tape != TapeMode::kNone) {
    return;
  }
  if (block == segment->blocks.end - 1) {
    run_again(*segment, mb, job, plan);
  }
  rerun_before(block, mb, segment->rerun, job, plan);
}

/// Decisions by block, clipped to the blocks of its stage that have a BACKWARD.
std::vector<const Segments*> decisions(
    const Segments& segments,
    const Job& job,
    std::vector<Segments>& storage) {
  std::vector<const Segments*> chosen(job.model().blocks.size(), nullptr);
  storage.reserve(job.stages().size());
  for (const BlockRange& stage : job.stages()) {
    BlockRange needed{stage.end, stage.begin};
    for (int block = stage.begin; block < stage.end; ++block) {
      if (job.differentiable(block) && block != job.model().terminal()) {
        needed = {std::min(needed.begin, block), block + 1};
      }
    }
    storage.push_back(clip(segments, needed));
    std::fill(chosen.begin() + stage.begin, chosen.begin() + stage.end, &storage.back());
  }
  return chosen;
}

} // namespace

Plans recompute_pass(const Plans& plans, const Job& job, const PlanOptions& options) {
  std::vector<Segments> storage;
  const auto chosen = decisions(options.segments, job, storage);
  Plans result;
  for (const StepPlan& plan : plans) {
    StepPlan& ops = result.emplace_back();
    for (Op op : plan) {
      if (op.kind == OpKind::kForward && op.tape == TapeMode::kFull) {
        const Segment* segment = find(*chosen[static_cast<size_t>(op.block)], op.block);
        op.tape = segment != nullptr ? segment->tape : op.tape;
      } else if (op.kind == OpKind::kBackward && op.part != BackwardPart::kWeight) {
        rerun_before(op.block, op.mb, *chosen[static_cast<size_t>(op.block)], job, ops);
      }
      ops.push_back(op);
    }
  }
  return result;
}

} // namespace palimpsest
