#include <palimpsest/core/plan/closed_forms.h>

#include <algorithm>

namespace palimpsest {

StateBytes bytes_per_rank(const StateBytes& whole, const Placement& placement, int ranks) {
  return {
      .parameters = whole.parameters / (placement.shards_parameters() ? ranks : 1),
      .gradients = whole.gradients / (placement.shards_gradients() ? ranks : 1),
      .optimizer = whole.optimizer / (placement.shards_optimizer() ? ranks : 1)};
}

int64_t executions(int layers, int kept) {
  return int64_t{3} * layers - kept;
}

int64_t tape_bytes(int kept, int64_t activations) {
  return std::max(kept, 1) * activations;
}

double tape_ratio(int layers, int kept) {
  return static_cast<double>(kept) / layers;
}

int64_t interval_bytes(int layers, int interval, int64_t input, int64_t activations) {
  return (layers + interval - 1) / interval * input + interval * activations;
}

int best_interval(int layers, int64_t input, int64_t activations) {
  int best = 1;
  for (int interval = 2; interval <= layers; ++interval) {
    if (interval_bytes(layers, interval, input, activations) <
        interval_bytes(layers, best, input, activations)) {
      best = interval;
    }
  }
  return best;
}

} // namespace palimpsest
