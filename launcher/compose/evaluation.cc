#include <palimpsest/launcher/compose/evaluation.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/core/data/subset_source.h>
#include <palimpsest/launcher/compose/replanner.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

namespace palimpsest {
namespace {

bool has_target(const SampleSource& samples, int64_t sample) {
  if (samples.kind() == SampleKind::kFeatures) {
    return true;
  }
  std::vector<int64_t> ids(static_cast<size_t>(samples.input_size()));
  std::vector<int64_t> labels(static_cast<size_t>(samples.label_size()));
  samples.read(sample, ids.data(), labels.data());
  return std::ranges::any_of(labels, [](int64_t label) { return label != kIgnoredLabel; });
}

} // namespace

std::unique_ptr<SampleSource> held_out_samples(
    std::unique_ptr<SampleSource> all,
    std::optional<int64_t> most) {
  if (all == nullptr) {
    return nullptr;
  }
  if (most && *most < all->size()) {
    std::vector<int64_t> first(static_cast<size_t>(*most));
    std::iota(first.begin(), first.end(), 0);
    all = std::make_unique<SubsetSource>(std::move(all), std::move(first));
  }
  for (int64_t sample = 0; sample < all->size(); ++sample) {
    if (has_target(*all, sample)) {
      return all;
    }
  }
  throw UserError(
      "data.validation: none of {} has a target, so there is no loss to measure; give other "
      "samples",
      counted(all->size(), "held-out sample"));
}

std::unique_ptr<StepBatches> held_out_batches(
    std::unique_ptr<SampleSource> samples,
    int64_t micro_batch,
    const MeshGroups& groups) {
  BatchSettings settings;
  settings.micro_batch_size = micro_batch;
  settings.global_batch_size = micro_batch * groups.mesh.data();
  settings.shuffle = false;
  settings.rank = groups.data_rank();
  settings.ranks = groups.mesh.data();
  return std::make_unique<StepBatches>(std::move(samples), settings);
}

HeldOut::HeldOut(std::unique_ptr<StepBatches> batches, const Parts& parts)
    : parts_(parts), batches_(std::move(batches)),
      executor_(
          parts.model.chain(),
          {.params = parts.store, .optimizer = optimizer_, .norm = norm_, .memory = parts.memory}) {
  take_plan();
}

void HeldOut::take_plan() {
  const PlanBook::Evaluation& evaluation = parts_.plans.evaluation();
  batches_->set_micro_batch_size(evaluation.samples);
  evaluator_.emplace(executor_, evaluation.planned, *batches_, parts_.memory, parts_.groups.data);
}

std::optional<EvaluationRecord> HeldOut::measure(
    int64_t step,
    const std::vector<Observer*>& observers,
    const std::function<bool()>& stop_requested) {
  const auto long_work = parts_.ranks.long_work("evaluating");
  const auto begin = std::chrono::steady_clock::now();
  Replanner replanner(parts_.ranks, parts_.plans, parts_.memory, observers);
  HeldOutLoss found = evaluator_->evaluate(stop_requested);
  while (found.end == HeldOutLoss::End::kExhausted) {
    replanner.replan_evaluation(found.shortage);
    take_plan();
    found = evaluator_->evaluate(stop_requested);
  }
  if (found.end == HeldOutLoss::End::kStopped) {
    return std::nullopt;
  }
  EvaluationRecord record{.step = step, .loss = found.mean()};
  if (parts_.model.reads_tokens()) {
    record.perplexity = std::exp(record.loss);
  }
  record.samples = batches_->sample_count();
  record.targets = found.targets;
  record.time_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return record;
}

bool EvaluationState::add(
    int64_t step,
    int64_t updates_before,
    double loss,
    double min_improvement) {
  if (updates_before != updates) {
    const bool lower = loss < counted_loss && loss <= counted_loss - min_improvement;
    not_lower = lower ? 0 : not_lower + 1;
    counted_loss = lower ? loss : counted_loss;
  }
  updates = updates_before;
  const bool best = loss < best_loss;
  if (best) {
    best_step = step;
    best_loss = loss;
  }
  return best;
}

bool EvaluationState::used_up(std::optional<int64_t> patience) const {
  return patience && not_lower >= *patience;
}

std::map<std::string, double> EvaluationState::numbers() const {
  std::map<std::string, double> numbers;
  if (*this != EvaluationState{.samples = samples}) {
    numbers["evaluation.samples"] = static_cast<double>(samples);
    numbers["evaluation.not_lower"] = static_cast<double>(not_lower);
    numbers["evaluation.updates"] = static_cast<double>(updates);
    numbers["evaluation.dropped"] = dropped ? 1 : 0;
  }
  if (best_step > 0) { // else the losses were NaN
    numbers["evaluation.best_step"] = static_cast<double>(best_step);
    numbers["evaluation.best_loss"] = best_loss;
    numbers["evaluation.counted_loss"] = counted_loss;
  }
  return numbers;
}

EvaluationState EvaluationState::from(
    const std::map<std::string, double>& numbers,
    int64_t samples) {
  EvaluationState state{.samples = samples};
  const auto number = [&](const char* name, double otherwise) {
    const auto found = numbers.find(std::string("evaluation.") + name);
    return found == numbers.end() ? otherwise : found->second;
  };
  state.dropped = samples > 0 && number("dropped", 0) != 0;
  if (number("samples", -1) != static_cast<double>(samples)) {
    return state;
  }
  state.updates = static_cast<int64_t>(number("updates", 0));
  state.not_lower = static_cast<int64_t>(number("not_lower", 0));
  state.best_step = static_cast<int64_t>(number("best_step", 0));
  state.best_loss = number("best_loss", state.best_loss);
  state.counted_loss = number("counted_loss", state.counted_loss);
  return state;
}

Evaluations::Settings Evaluations::settings(const RunConfig::Evaluation& config) {
  Settings settings;
  if (config.has_every()) {
    settings.every = config.every();
  }
  if (config.has_patience()) {
    settings.patience = config.patience();
  }
  settings.min_improvement = config.min_improvement();
  return settings;
}

Evaluations::Evaluations(
    HeldOut& held_out,
    const Settings& settings,
    EvaluationState& state,
    const std::vector<Observer*>& observers,
    std::function<void()> keep)
    : held_out_(held_out), settings_(settings), state_(state), observers_(observers),
      keep_(std::move(keep)), updates_(settings.done.updates) {
  if (ended() && settings_.done.step < settings_.last_step) {
    tell_end();
  }
}

void Evaluations::step_end(const StepRecord& step) {
  updates_ += step.skipped ? 0 : 1;
  const bool due = settings_.every && step.step % *settings_.every == 0;
  if (due || step.step == settings_.last_step) {
    evaluate(step.step);
  }
}

void Evaluations::catch_up() {
  if (state_.dropped) {
    evaluate(settings_.done.step);
  }
}

void Evaluations::evaluate(int64_t step) {
  auto record = held_out_.measure(step, observers_, settings_.stop_requested);
  state_.dropped = !record;
  if (!record) {
    return tell(fmt::format(
        "the evaluation after step {} is dropped, since the run was asked to stop; it is done "
        "when the run goes on",
        step));
  }
  record->best = state_.add(step, updates_, record->loss, settings_.min_improvement);
  if (record->best && keep_) {
    keep_();
  }
  for (Observer* observer : observers_) {
    observer->evaluation_end(*record);
  }
  if (ended() && step != settings_.last_step) {
    tell_end();
  }
}

bool Evaluations::ended() const {
  return state_.used_up(settings_.patience);
}

void Evaluations::tell_end() const {
  tell(fmt::format(
      "the run ends early: {} in a row without a lower loss (evaluation.patience), the lowest was "
      "{:.4f} after step {}",
      counted(state_.not_lower, "evaluation"),
      state_.best_loss,
      state_.best_step));
}

void Evaluations::tell(const std::string& text) const {
  for (Observer* observer : observers_) {
    observer->note(text);
  }
}

} // namespace palimpsest
