#pragma once

// Sees a run and changes nothing: tracker, progress, metrics, timeline.

#include <palimpsest/core/plan/op.h>

#include <cstdint>
#include <optional>
#include <string>

namespace palimpsest {

/// One optimizer step as it is reported. `metrics.jsonl` has one object of exactly these fields a
/// step.
struct StepRecord {
  int64_t step = 0; // from 1
  double loss = 0; // sum of token losses / targets, over the whole step
  double grad_norm = 0; // before clipping
  double learning_rate = 0;
  bool skipped = false; // not finite, or without a target: nothing was updated
  int64_t tokens = 0;
  double step_time_s = 0;
  double data_wait_s = 0; // of it, until the samples were there; of the rank that waited longest
  double tokens_per_s = 0;
  int64_t peak_device_bytes = 0; // of the rank that has most
  int64_t peak_rss_bytes = 0;
  std::optional<double> loss_scale = {}; // of this step, where the loss is scaled
};

/// The loss on held-out samples, as it is reported.
struct EvaluationRecord {
  int64_t step = 0; // steps done by then
  double loss = 0; // sum of token losses / targets, over all samples and ranks
  std::optional<double> perplexity = {}; // exp(loss), of a model that reads tokens
  int64_t samples = 0;
  int64_t targets = 0;
  double time_s = 0;
  bool best = false; // lower than all before it in this run
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void op_begin(size_t /*index*/, const Op& /*op*/) {}
  virtual void op_end(size_t /*index*/, const Op& /*op*/) {}
  virtual void step_end(const StepRecord& /*record*/) {}
  virtual void evaluation_end(const EvaluationRecord& /*record*/) {}
  /// What happened in the run that its user should know: a sentence.
  virtual void note(const std::string& /*text*/) {}
};

} // namespace palimpsest
