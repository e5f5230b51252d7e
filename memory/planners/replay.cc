#include <palimpsest/memory/planners/replay.h>

#include <palimpsest/core/plan/drop.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/core/plan/step.h>
#include <palimpsest/memory/recompute/recompute_pass.h>

#include <utility>

namespace palimpsest {
namespace {

/// What block 2 l - 1 writes beside the output that block 2 l - 2 wrote.
std::vector<ValueRef> reads_of(int stage) {
  if (stage == 0) {
    return {{kLoader, 0}};
  }
  return {{2 * stage - 2, 0}, {2 * stage - 1, 0}};
}

BlockCost computing_block(const CostChain& chain, int stage) {
  const ChainStage& from = chain.stages[static_cast<size_t>(stage)];
  BlockCost block{
      .name = from.name,
      .reads = reads_of(stage),
      .value_bytes = {from.output_bytes},
      .units = {stage}};
  block.forward_workspace.none = from.forward_workspace;
  block.forward_seconds = from.forward_seconds;
  // The micro-batch has no gradient; the chain's input has.
  const int64_t more = from.output_bytes + (stage == 0 ? chain.input_bytes : 0);
  const TapeOption& full = from.tape_of(TapeMode::kFull);
  const TapeOption& lean = from.tape_of(TapeMode::kLean);
  block.full_bytes = full.bytes - from.output_bytes;
  block.lean_bytes = lean.bytes - from.output_bytes;
  block.forward_workspace.full = full.forward_workspace;
  block.forward_workspace.lean = lean.forward_workspace;
  block.backward_workspace.full = full.backward_workspace + more;
  block.backward_workspace.lean = lean.backward_workspace + more;
  block.value_seconds.full = full.value_seconds;
  block.value_seconds.lean = lean.value_seconds;
  block.input_seconds = full.backward_seconds;
  block.lean_seconds = lean.backward_seconds - full.backward_seconds;
  return block;
}

/// Reads its stage's output, unless that is spared where nobody else reads it.
BlockCost reading_block(const CostChain& chain, int stage) {
  const ValueRef output{2 * stage, 0};
  const ValueRef before = stage == 0 ? ValueRef{kLoader, 0} : ValueRef{2 * stage - 1, 0};
  return {
      .reads = {chain.spares_unread ? before : output},
      .value_bytes = {0},
      .units = {chain.size() + 1}};
}

ModelCost model_of(const CostChain& chain) {
  ModelCost model;
  model.batch_bytes = chain.input_bytes;
  for (int stage = 0; stage < chain.size(); ++stage) {
    model.units.push_back(
        {.gradient_bytes = chain.stages[static_cast<size_t>(stage)].gradient_bytes});
    model.blocks.push_back(computing_block(chain, stage));
    model.blocks.push_back(reading_block(chain, stage));
  }
  model.units.push_back({.gradient_bytes = chain.loss_gradient_bytes});
  model.blocks.push_back(
      {.name = "loss", .reads = reads_of(chain.size()), .units = {chain.size()}});
  model.units.push_back({.name = "nothing"}); // so that all blocks have a BACKWARD
  model.blocks.back().forward_seconds = chain.loss_seconds;
  model.blocks.back().forward_workspace.full = chain.loss_workspace;
  return model;
}

Segments of_block_pairs(const Segments& segments, const CostChain& chain) {
  CostChain pairs = chain;
  for (int stage = 0; stage < chain.size(); ++stage) {
    pairs.stages[static_cast<size_t>(stage)].blocks = {2 * stage, 2 * stage + 2};
  }
  return block_segments(segments, pairs);
}

/// Only what computes: FORWARDs up to the loss, BACKWARDs down to the first block.
StepPlan plain_plan(const Job& job) {
  StepPlan plan{Op::load(0)};
  const int terminal = job.model().terminal();
  for (int block = 0; block <= terminal; ++block) {
    plan.push_back(
        Op::forward(block, 0, TapeMode::kFull, block == terminal ? ValueSet{} : ValueSet{0}));
  }
  for (int block = terminal - 1; block >= 0; --block) {
    plan.push_back(Op::backward(block, 0));
  }
  return plan;
}

} // namespace

Job replay_job(const CostChain& chain) {
  ModelCost model = model_of(chain);
  const int blocks = static_cast<int>(model.blocks.size());
  return Job({.model = std::move(model), .stages = {{0, blocks}}});
}

ChainReplay replay_chain(const CostChain& chain, const Segments& segments) {
  const Job job = replay_job(chain);
  const PlanOptions options{.segments = of_block_pairs(segments, chain)};
  Plans plans = recompute_pass({plain_plan(job)}, job, options);
  plans = drop_pass(step_pass(plans, job, options), job, options);
  const PlanReport report = simulate(plans, job);
  return {std::move(plans.front()), report.seconds, report.peak(TierId::kDevice)};
}

} // namespace palimpsest
