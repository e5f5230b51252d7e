#include <palimpsest/core/engine/trainer.h>

#include <palimpsest/core/device/rss.h>

#include <chrono>
#include <utility>

namespace palimpsest {

Trainer::Trainer(
    Executor& executor,
    PlanFor plan_for,
    BatchSource& source,
    MemoryContext& memory,
    Settings settings)
    : executor_(executor), plan_for_(std::move(plan_for)), source_(source), memory_(memory),
      settings_(std::move(settings)) {}

void Trainer::run(const std::vector<Observer*>& observers) {
  const int64_t count = source_.step_count();
  for (int64_t number = 0; number < count; ++number) {
    const StepRecord record = step(number);
    for (Observer* observer : observers) {
      observer->step_end(record);
    }
  }
}

StepRecord Trainer::step(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  memory_.reset_peaks();
  StepBatch batches;
  {
    const ScopedCategory category(memory_, Category::kActivations);
    batches = source_.load(step);
  }
  int64_t targets = 0;
  StepRecord record{.step = step + 1, .learning_rate = settings_.learning_rate(updates_)};
  for (const MicroBatch& batch : batches) {
    targets += batch.target_count;
    record.tokens += batch.token_count;
  }
  record.skipped = true;
  if (targets > 0) {
    const double scale = 1.0 / static_cast<double>(targets);
    const auto planned = plan_for_(static_cast<int>(batches.size()));
    const StepOutcome outcome = executor_.run(
        planned->plan,
        planned->job,
        {.batches = batches,
         .seed = settings_.seed,
         .step = static_cast<uint64_t>(step),
         .loss_scale = scale,
         .learning_rate = record.learning_rate,
         .updates = updates_ + 1,
         .clip = settings_.clip});
    record.loss = outcome.loss_sum * scale;
    record.grad_norm = outcome.grad_norm;
    record.skipped = !outcome.finite;
  }
  updates_ += record.skipped ? 0 : 1;
  record.step_time_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  record.tokens_per_s = static_cast<double>(record.tokens) / record.step_time_s;
  record.peak_device_bytes = memory_.total().peak;
  record.peak_rss_bytes = peak_rss();
  return record;
}

} // namespace palimpsest
