#include <palimpsest/core/engine/evaluator.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

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

HeldOutLoss Evaluator::evaluate(const std::function<bool()>& stop_requested) {
  HeldOutLoss held_out;
  std::vector<double> mine = {0}; // targets, then losses by micro-batch
  const auto go_on = [&](bool asked_to_stop) {
    held_out.end = gravest(
        held_out.shortage   ? End::kExhausted
            : asked_to_stop ? End::kStopped
                            : End::kComplete);
    return held_out.end == End::kComplete;
  };
  for (int64_t step = 0; step < source_.step_count(); ++step) {
    const StepBatch batches = load(step, held_out.shortage);
    if (held_out.shortage) {
      go_on(false); // the others ask before their next micro-batch
      return held_out;
    }
    for (const MicroBatch& batch : batches) {
      if (!go_on(stop_requested && stop_requested())) {
        return held_out;
      }
      const StepBatch one = {batch};
      const StepOutcome outcome = executor_.run(planned_->plan, planned_->job, {.batches = one});
      mine.front() += static_cast<double>(batch.target_count);
      mine.push_back(outcome.loss_sum);
      held_out.shortage = outcome.shortage;
    }
  }
  if (!go_on(false)) {
    return held_out;
  }
  const std::vector<double> all = of_all_ranks(mine);
  for (size_t rank = 0; rank < all.size(); rank += mine.size()) {
    held_out.targets += static_cast<int64_t>(all[rank]);
  }
  for (size_t batch = 1; batch < mine.size(); ++batch) {
    for (size_t rank = 0; rank < all.size(); rank += mine.size()) {
      held_out.sum += all[rank + batch];
    }
  }
  return held_out;
}

StepBatch Evaluator::load(int64_t step, std::optional<MemoryShortage>& shortage) const {
  StepBatch batches;
  if (!shortage) {
    const ScopedCategory category(memory_, Category::kActivations);
    if (const auto refused = refusal_in(memory_, [&] { batches = source_.load(step); })) {
      shortage = {.doing = "while loading the samples of an evaluation", .refused = *refused};
    }
  }
  return batches;
}

HeldOutLoss::End Evaluator::gravest(End mine) const {
  auto end = static_cast<int64_t>(mine);
  if (ranks_ != nullptr && ranks_->size() > 1) {
    ranks_->all_reduce(at::from_blob(&end, {1}, at::kLong), ReduceOp::kMax).wait();
  }
  return static_cast<End>(end);
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
