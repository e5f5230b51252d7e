#include <palimpsest/core/data/step_batches.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>

namespace palimpsest {

namespace {

Mixture mixture_of(const SampleSource& samples, const BatchSettings& settings) {
  if (settings.mixture.empty()) {
    return Mixture(std::vector<MixturePart>{{.samples = samples.size()}});
  }
  int64_t count = 0;
  for (const MixturePart& part : settings.mixture) {
    count += part.samples;
  }
  check(count == samples.size(), "parts of {} samples of {}", count, samples.size());
  return Mixture(settings.mixture);
}

/// 0, 1, ... in each document; padding, which is no target, counts as one more.
void count_positions(std::span<const int64_t> documents, std::span<int64_t> positions) {
  auto next = positions.begin();
  for (const int64_t length : documents) {
    std::iota(next, next + length, 0);
    next += length;
  }
  std::iota(next, positions.end(), 0);
}

} // namespace

StepBatches::StepBatches(std::unique_ptr<SampleSource> samples, const BatchSettings& settings)
    : source_(std::make_unique<ReadAhead>(std::move(samples))), settings_(settings),
      mixture_(mixture_of(*source_, settings)),
      windows_(mixture_.size(), settings.global_batch_size, settings.drop_last) {
  set_micro_batch_size(settings.micro_batch_size);
  check(
      settings.rank >= 0 && settings.rank < settings.ranks,
      "rank {} of {}",
      settings.rank,
      settings.ranks);
}

void StepBatches::set_micro_batch_size(int64_t samples) {
  check(samples > 0, "micro-batches of {}", samples);
  settings_.micro_batch_size = samples;
}

int64_t StepBatches::step_count() const {
  return settings_.steps.value_or(settings_.epochs * windows_.per_epoch());
}

int64_t StepBatches::consumed(int64_t step) const {
  const StepWindow next = windows_.at(step);
  const int64_t left_out = settings_.drop_last ? windows_.rest() : 0;
  return next.epoch * (sample_count() - left_out) + next.begin;
}

std::vector<int64_t> StepBatches::samples(int64_t step) const {
  const StepWindow window = windows_.at(step);
  const MixtureOrder order(mixture_, settings_.seed, window.epoch, settings_.shuffle);
  std::vector<int64_t> samples(static_cast<size_t>(window.size));
  for (int64_t i = 0; i < window.size; ++i) {
    samples[static_cast<size_t>(i)] = order[window.begin + i];
  }
  return samples;
}

std::vector<int64_t> StepBatches::global_sizes(const StepWindow& window) const {
  const int64_t round =
      settings_.micro_batch_size * settings_.ranks; // one micro-batch of each rank
  return split_evenly(window.size, settings_.ranks * ((window.size + round - 1) / round));
}

std::vector<StepBatches::Rows> StepBatches::own_rows(const StepWindow& window) const {
  std::vector<Rows> mine;
  int64_t first = 0;
  int g = 0;
  for (const int64_t count : global_sizes(window)) {
    if (g++ % settings_.ranks == settings_.rank) {
      mine.push_back({first, count});
    }
    first += count;
  }
  return mine;
}

std::vector<int64_t> StepBatches::micro_batch_sizes(int64_t step) const {
  std::vector<int64_t> mine;
  for (const Rows& rows : own_rows(windows_.at(step))) {
    mine.push_back(rows.count);
  }
  return mine;
}

StepBatch StepBatches::load(int64_t step) {
  check(step >= 0 && step < step_count(), "step {} of {}", step, step_count());
  const std::vector<int64_t> all = samples(step);
  StepBatch batch;
  for (const Rows& rows : own_rows(windows_.at(step))) {
    const auto part =
        std::span(all).subspan(static_cast<size_t>(rows.first), static_cast<size_t>(rows.count));
    batch.push_back(load_rows(part, rows.first));
  }
  if (step + 1 < step_count()) {
    expect(step + 1);
  }
  return batch;
}

void StepBatches::expect(int64_t step) {
  const std::vector<int64_t> all = samples(step);
  std::vector<int64_t> mine;
  for (const Rows& rows : own_rows(windows_.at(step))) {
    const auto begin = all.begin() + rows.first;
    mine.insert(mine.end(), begin, begin + rows.count);
  }
  source_->expect(mine);
}

MicroBatch StepBatches::load_rows(std::span<const int64_t> samples, int64_t first_row) const {
  const bool tokens = source_->kind() == SampleKind::kTokens;
  const at::ScalarType dtype = tokens ? at::kLong : at::kFloat;
  const auto rows = static_cast<int64_t>(samples.size());
  MicroBatch batch;
  batch.inputs = at::empty({rows, source_->input_size()}, dtype);
  batch.labels = at::empty({rows, source_->label_size()}, dtype);
  batch.rows = at::arange(first_row, first_row + rows, at::kLong);
  const auto row_of = [&](at::Tensor& tensor, int64_t row) {
    return static_cast<std::byte*>(tensor.mutable_data_ptr()) +
        row * tensor.size(1) * static_cast<int64_t>(tensor.element_size());
  };
  for (int64_t row = 0; row < rows; ++row) {
    source_->read(
        samples[static_cast<size_t>(row)], row_of(batch.inputs, row), row_of(batch.labels, row));
  }
  if (tokens) {
    const std::span labels(
        batch.labels.const_data_ptr<int64_t>(), static_cast<size_t>(batch.labels.numel()));
    batch.target_count =
        std::ranges::count_if(labels, [](int64_t id) { return id != kIgnoredLabel; });
    batch.token_count = 0;
    if (source_->packed()) {
      batch.positions = at::empty_like(batch.inputs);
    }
    for (int64_t row = 0; row < rows; ++row) {
      const auto documents = source_->documents(samples[static_cast<size_t>(row)]);
      batch.token_count += std::accumulate(documents.begin(), documents.end(), int64_t{0});
      if (source_->packed()) {
        auto* positions = reinterpret_cast<int64_t*>(row_of(batch.positions, row));
        count_positions(documents, {positions, static_cast<size_t>(source_->input_size())});
      }
    }
  } else {
    batch.target_count = batch.labels.numel();
    batch.token_count = rows;
  }
  return batch;
}

Notes StepBatches::notes() const {
  if (windows_.rest() == 0) {
    return {};
  }
  if (settings_.drop_last) {
    return {fmt::format(
        "data.drop_last leaves {} of {} samples out of each epoch",
        windows_.rest(),
        sample_count())};
  }
  return {fmt::format(
      "each epoch ends with a batch of {} instead of {} samples",
      windows_.rest(),
      settings_.global_batch_size)};
}

} // namespace palimpsest
