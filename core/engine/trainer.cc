#include <palimpsest/core/engine/trainer.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/rss.h>

#include <ATen/ops/from_blob.h>

#include <fmt/format.h>

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
      settings_(std::move(settings)), position_(settings_.begin) {
  if (settings_.loss_scaling && position_.loss_scale) {
    scaler_.emplace(*settings_.loss_scaling, *position_.loss_scale);
  } else if (settings_.loss_scaling) {
    scaler_.emplace(*settings_.loss_scaling);
  }
}

TrainingPosition Trainer::position() const {
  TrainingPosition position = position_;
  position.loss_scale = scaler_ ? std::optional(scaler_->state()) : std::nullopt;
  return position;
}

bool Trainer::run(const std::vector<Observer*>& observers) {
  while (position_.step < source_.step_count()) {
    if (stop_agreed()) {
      return false;
    }
    const StepRecord record = step();
    for (Observer* observer : observers) {
      observer->step_end(record);
    }
  }
  return true;
}

std::vector<int64_t> Trainer::over_ranks(std::vector<int64_t> numbers, ReduceOp op) const {
  if (settings_.ranks != nullptr && settings_.ranks->size() > 1) {
    const auto count = static_cast<int64_t>(numbers.size());
    settings_.ranks->all_reduce(at::from_blob(numbers.data(), {count}, at::kLong), op).wait();
  }
  return numbers;
}

bool Trainer::stop_agreed() const {
  const bool mine = settings_.stop_requested && settings_.stop_requested();
  return over_ranks({mine ? 1 : 0}, ReduceOp::kMax).front() != 0;
}

StepOutcome Trainer::run_plan(const StepInputs& inputs) {
  const auto micro_batches = static_cast<int>(inputs.batches.size());
  for (;;) {
    const auto planned = plan_for_(micro_batches);
    StepOutcome outcome = executor_.run(planned->plan, planned->job, inputs);
    if (!outcome.exhausted) {
      return outcome;
    }
    if (!settings_.replan) {
      throw EnvironmentError(
          "{}", outcome.shortage ? describe(*outcome.shortage) : "out of memory on another rank");
    }
    settings_.replan(micro_batches, outcome.shortage);
  }
}

StepRecord Trainer::step() {
  const int64_t step = position_.step;
  const auto begin = std::chrono::steady_clock::now();
  memory_.reset_peaks();
  StepBatch batches;
  {
    const ScopedCategory category(memory_, Category::kActivations);
    name_shortages(memory_, fmt::format("loading the samples of step {}", step + 1), [&] {
      batches = source_.load(step);
    });
  }
  const auto waited = std::chrono::steady_clock::now() - begin;
  StepRecord record{.step = step + 1, .learning_rate = settings_.learning_rate(position_.updates)};
  std::vector<int64_t> counts = {0, 0};
  for (const MicroBatch& batch : batches) {
    counts[0] += batch.target_count;
    counts[1] += batch.token_count;
  }
  counts = over_ranks(std::move(counts), ReduceOp::kSum);
  const int64_t targets = counts[0];
  record.tokens = counts[1];
  record.skipped = true;
  if (targets > 0) {
    const double scale = 1.0 / static_cast<double>(targets);
    const StepOutcome outcome = run_plan(
        {.batches = batches,
         .seed = settings_.seed,
         .step = static_cast<uint64_t>(step),
         .loss_scale = scale,
         .gradient_scale = scaler_ ? scaler_->scale() : 1,
         .learning_rate = record.learning_rate,
         .updates = position_.updates + 1,
         .clip = settings_.clip});
    record.loss = outcome.loss_sum * scale;
    record.grad_norm = outcome.grad_norm;
    record.skipped = !outcome.finite;
    if (scaler_) {
      record.loss_scale = scaler_->scale();
      scaler_->update(outcome.finite);
    }
  }
  position_ = {.step = step + 1, .updates = position_.updates + (record.skipped ? 0 : 1)};
  record.step_time_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  record.tokens_per_s = static_cast<double>(record.tokens) / record.step_time_s;
  using Nanoseconds = std::chrono::nanoseconds;
  const int64_t wait = std::chrono::duration_cast<Nanoseconds>(waited).count();
  const auto most = over_ranks({memory_.total().peak, peak_rss(), wait}, ReduceOp::kMax);
  record.peak_device_bytes = most[0];
  record.peak_rss_bytes = most[1];
  record.data_wait_s = std::chrono::duration<double>(Nanoseconds(most[2])).count();
  return record;
}

} // namespace palimpsest
