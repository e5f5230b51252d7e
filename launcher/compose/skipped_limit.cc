#include <palimpsest/launcher/compose/skipped_limit.h>

#include <palimpsest/core/base/error.h>

#include <cmath>
#include <limits>

namespace palimpsest {

SkippedLimit::SkippedLimit(const RunConfig& config, const Trainer& trainer, Ranks& ranks)
    : most_(
          config.training().has_max_skipped_steps() ? config.training().max_skipped_steps()
                                                    : std::numeric_limits<int64_t>::max()),
      trainer_(trainer), ranks_(ranks),
      adapts_(trainer.scaler().has_value() && !config.precision().loss_scaling().has_fixed()) {}

void SkippedLimit::step_end(const StepRecord& record) {
  if (trainer_.scaler() && trainer_.scaler()->exhausted()) {
    ranks_.alike([&] {
      throw EnvironmentError(
          "step {}: the loss is {} and its gradients overflow fp16 at a loss scale of {}, below "
          "which precision.loss_scaling.minimum does not go: weights or loss have grown too large; "
          "lower the learning rate, or compute in bf16; earlier checkpoints are kept",
          record.step,
          record.loss,
          record.loss_scale.value_or(1));
    });
  }
  const bool finite = std::isfinite(record.loss) && (adapts_ || std::isfinite(record.grad_norm));
  in_a_row_ = finite ? 0 : in_a_row_ + 1;
  if (in_a_row_ <= most_) {
    return;
  }
  ranks_.alike([&] {
    throw EnvironmentError(
        "step {}: the loss is {} and the gradient's norm {}, so nothing was updated, in {} "
        "step(s) in a row where training.max_skipped_steps allows {}; earlier checkpoints are "
        "kept",
        record.step,
        record.loss,
        record.grad_norm,
        in_a_row_,
        most_);
  });
}

} // namespace palimpsest
