#pragma once

// A run's micro-batches: which samples each optimizer step takes, in which order, cut how.
//
//   StepBatches batches(std::move(data.samples), {.global_batch_size = 8, .micro_batch_size = 3, .epochs = 2});
//   for (int64_t step = 0; step < batches.step_count(); ++step) {
//     StepBatch batch = batches.load(step);       // micro-batches of 3, 3 and 2 rows
//   }
//
// A step takes the next `global_batch_size` positions of its epoch's order (fewer at the epoch's
// end, see step_windows.h). They are cut in order into the fewest micro-batches of at most
// `micro_batch_size` rows that every rank gets equally many of; their sizes differ by at most one,
// larger ones first. Rank r of N takes the global micro-batches g = j N + r. On many ranks some of
// a small window's micro-batches are empty.

#include <palimpsest/core/contracts/batch_source.h>
#include <palimpsest/core/data/mixture_order.h>
#include <palimpsest/core/data/read_ahead.h>
#include <palimpsest/core/data/sample_source.h>
#include <palimpsest/core/data/step_windows.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace palimpsest {

struct BatchSettings {
  int64_t global_batch_size = 1; ///< samples of an optimizer step over all ranks
  int64_t micro_batch_size = 1; ///< most samples of one forward
  int64_t epochs = 1;
  std::optional<int64_t> steps =
      std::nullopt; ///< wins over epochs; more than one epoch's go on with the next
  uint64_t seed = 42;
  bool shuffle = true;
  bool drop_last = false;
  int rank = 0; ///< among the data-parallel ranks
  int ranks = 1;
  /// How often an epoch takes the samples of each of the joined sources; empty: all of them once.
  std::vector<MixturePart> mixture = {};
};

class StepBatches final : public BatchSource {
 public:
  /// UserError where drop_last leaves nothing.
  StepBatches(std::unique_ptr<SampleSource> samples, const BatchSettings& settings);

  /// Cuts steps into micro-batches of at most so many samples from now on.
  void set_micro_batch_size(int64_t samples);

  int64_t step_count() const override;
  /// Reads the samples of the step after it ahead.
  ///
  /// Tokens: inputs and labels int64 [B, T]; target_count is the number of labels that are targets,
  /// token_count that of the tokens without padding; positions where the samples are packed. Features: inputs [B, D] and labels [B, E] in fp32; target_count is B E, so
  /// that loss_sum / targets is a mean over elements, and token_count B.
  StepBatch load(int64_t step) override;

  /// The epoch and the positions that a step takes, also of one after the last.
  StepWindow window(int64_t step) const {
    return windows_.at(step);
  }
  int64_t steps_per_epoch() const {
    return windows_.per_epoch();
  }
  /// Of an epoch.
  int64_t sample_count() const {
    return mixture_.size();
  }
  /// Samples that the steps before this one took, over all ranks and epochs.
  int64_t consumed(int64_t step) const;

  /// The samples of a step over all ranks: row i of the step is samples(step)[i].
  std::vector<int64_t> samples(int64_t step) const;
  /// Rows of this rank's micro-batches. A run has at most two different lists: full windows and an
  /// epoch's last one.
  std::vector<int64_t> micro_batch_sizes(int64_t step) const;
  /// What users should know of the batches: an incomplete one in each epoch, samples left out.
  Notes notes() const;

 private:
  struct Rows {
    int64_t first = 0; // in the step
    int64_t count = 0;
  };
  /// This rank's micro-batches of a window.
  std::vector<Rows> own_rows(const StepWindow& window) const;
  void expect(int64_t step);
  /// Rows of all ranks' micro-batches of a window, in order of g.
  std::vector<int64_t> global_sizes(const StepWindow& window) const;
  MicroBatch load_rows(std::span<const int64_t> samples, int64_t first_row) const;

  std::unique_ptr<ReadAhead> source_;
  BatchSettings settings_;
  Mixture mixture_;
  StepWindows windows_;
};

} // namespace palimpsest
