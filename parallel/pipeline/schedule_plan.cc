#include <palimpsest/parallel/pipeline/schedule_plan.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>

namespace palimpsest {
namespace {

bool reads_batch(const BlockCost& block) {
  return std::any_of(block.reads.begin(), block.reads.end(), [](ValueRef value) {
    return value.producer == kLoader;
  });
}

BackwardPart part_of(Work work) {
  return work == Work::kBackwardInput ? BackwardPart::kInput
      : work == Work::kBackwardWeight ? BackwardPart::kWeight
                                      : BackwardPart::kBoth;
}

void forward_stage(
    StepPlan& plan,
    BlockRange blocks,
    int mb,
    std::vector<bool>& loaded,
    const Job& job) {
  for (int block = blocks.begin; block < blocks.end && !loaded[static_cast<size_t>(mb)]; ++block) {
    if (reads_batch(job.model().blocks[static_cast<size_t>(block)])) {
      plan.push_back(Op::load(mb));
      loaded[static_cast<size_t>(mb)] = true;
    }
  }
  for (int block = blocks.begin; block < blocks.end; ++block) {
    ValueSet yields;
    for (const int index : job.read_values(block)) {
      yields.insert(index);
    }
    const bool taped = job.training() && job.differentiable(block);
    plan.push_back(Op::forward(block, mb, taped ? TapeMode::kFull : TapeMode::kNone, yields));
  }
}

void backward_stage(StepPlan& plan, BlockRange blocks, int mb, Work work, const Job& job) {
  for (int block = blocks.end - 1; block >= blocks.begin; --block) {
    if (block == job.model().terminal() || !job.differentiable(block)) {
      continue;
    }
    const bool splits = work != Work::kBackward && !job.trainable(block).empty();
    if (splits || work != Work::kBackwardWeight) {
      plan.push_back(Op::backward(block, mb, splits ? part_of(work) : BackwardPart::kBoth));
    }
  }
}

} // namespace

StepPlan schedule_plan(const std::vector<Turn>& turns, const Job& job) {
  StepPlan plan;
  std::vector<bool> loaded(static_cast<size_t>(job.micro_batches()));
  for (const Turn& turn : turns) {
    const BlockRange blocks = job.stages()[static_cast<size_t>(turn.stage)];
    if (turn.work == Work::kForward) {
      forward_stage(plan, blocks, turn.mb, loaded, job);
    } else {
      backward_stage(plan, blocks, turn.mb, turn.work, job);
    }
  }
  return plan;
}

Plans schedule_plans(const Schedule& schedule, const Job& job) {
  const int ranks = job.mesh().pipeline;
  const auto wanted = static_cast<size_t>(ranks * schedule.chunks);
  if (job.stages().size() != wanted) {
    throw UserError(
        "schedule {} needs {} stages on {} pipeline ranks; there are {}",
        schedule.name,
        wanted,
        ranks,
        job.stages().size());
  }
  Plans plans;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Turn> turns = schedule.turns(rank, ranks, job.micro_batches());
    if (!job.training()) {
      std::erase_if(turns, [](const Turn& turn) { return turn.work != Work::kForward; });
    }
    plans.push_back(schedule_plan(turns, job));
  }
  return plans;
}

} // namespace palimpsest
