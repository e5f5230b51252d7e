#include <palimpsest/memory/recompute/layer_runs.h>

#include <cmath>

namespace palimpsest {

Segments sqrt_layers(const ModelCost& model, const PolicyOptions& options) {
  refuse_other_options("sqrt", options, {PolicyOption::kKeepLast});
  PolicyOptions with_segments = options;
  if (!model.layers.empty()) {
    with_segments.segments =
        static_cast<int>(std::lround(std::sqrt(static_cast<double>(model.layers.size()))));
  }
  return uniform(model, with_segments);
}

} // namespace palimpsest
