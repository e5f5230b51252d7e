#include <palimpsest/core/engine/evaluator.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

Evaluator::Evaluator(
    Executor& executor,
    std::shared_ptr<const PlannedStep> planned,
    BatchSource& source,
    MemoryContext& memory,
    Communicator* ranks)
    : executor_(executor), planned_(std::move(planned)), source_(source), memory_(memory),
      ranks_(ranks) {
  check(!planned_->job.training(), "an evaluation by a plan that trains");
}

HeldOutLoss Evaluator::evaluate() {
  HeldOutLoss held_out;
  std::vector<double> mine; // targets, then losses by step
  mine.push_back(0);
  for (int64_t step = 0; step < source_.step_count(); ++step) {
    StepBatch batches;
    {
      const ScopedCategory category(memory_, Category::kActivations);
      name_shortages(
          memory_, "loading the samples of an evaluation", [&] { batches = source_.load(step); });
    }
    for (const MicroBatch& batch : batches) {
      mine.front() += static_cast<double>(batch.target_count);
    }
    const StepOutcome outcome = executor_.run(planned_->plan, planned_->job, {.batches = batches});
    mine.push_back(outcome.loss_sum);
    if (!held_out.shortage) { // the rank goes on, since the others wait for its collectives
      held_out.shortage = outcome.shortage;
    }
  }
  const std::vector<double> all = of_all_ranks(mine);
  for (size_t rank = 0; rank < all.size(); rank += mine.size()) {
    held_out.targets += static_cast<int64_t>(all[rank]);
  }
  for (size_t step = 1; step < mine.size(); ++step) {
    for (size_t rank = 0; rank < all.size(); rank += mine.size()) {
      held_out.sum += all[rank + step];
    }
  }
  return held_out;
}

std::vector<double> Evaluator::of_all_ranks(const std::vector<double>& mine) const {
  if (ranks_ == nullptr || ranks_->size() == 1) {
    return mine;
  }
  const ScopedCategory category(memory_, Category::kCommunication);
  const auto count = static_cast<int64_t>(mine.size());
  const at::Tensor all = at::empty({count * ranks_->size()}, at::kDouble);
  const at::Tensor own = all.narrow(0, ranks_->rank() * count, count);
  std::ranges::copy(mine, own.mutable_data_ptr<double>());
  ranks_->all_gather(own, all).wait();
  const double* first = all.const_data_ptr<double>();
  return {first, first + all.numel()};
}

} // namespace palimpsest
