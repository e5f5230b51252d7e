#include <palimpsest/core/data/step_batches.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace palimpsest {

StepBatches::StepBatches(std::unique_ptr<SampleSource> samples, const BatchSettings& settings)
    : source_(std::move(samples)), settings_(settings),
      windows_(source_->size(), settings.global_batch_size, settings.drop_last) {
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
  return next.epoch * (source_->size() - left_out) + next.begin;
}

std::vector<int64_t> StepBatches::samples(int64_t step) const {
  const StepWindow window = windows_.at(step);
  const EpochOrder order(settings_.seed, window.epoch, source_->size(), settings_.shuffle);
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

std::vector<int64_t> StepBatches::micro_batch_sizes(int64_t step) const {
  const std::vector<int64_t> all = global_sizes(windows_.at(step));
  std::vector<int64_t> mine;
  for (auto g = static_cast<size_t>(settings_.rank); g < all.size();
       g += static_cast<size_t>(settings_.ranks)) {
    mine.push_back(all[g]);
  }
  return mine;
}

StepBatch StepBatches::load(int64_t step) {
  check(step >= 0 && step < step_count(), "step {} of {}", step, step_count());
  const std::vector<int64_t> rows = samples(step);
  StepBatch batch;
  int64_t first_row = 0;
  int g = 0;
  for (const int64_t size : global_sizes(windows_.at(step))) {
    if (g++ % settings_.ranks == settings_.rank) {
      const auto part =
          std::span(rows).subspan(static_cast<size_t>(first_row), static_cast<size_t>(size));
      batch.push_back(load_rows(part, first_row));
    }
    first_row += size;
  }
  return batch;
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
    batch.token_count = batch.inputs.numel();
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
        source_->size())};
  }
  return {fmt::format(
      "each epoch ends with a batch of {} instead of {} samples",
      windows_.rest(),
      settings_.global_batch_size)};
}

} // namespace palimpsest
