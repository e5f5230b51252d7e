#include <palimpsest/memory/recompute/layer_runs.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>

#include <algorithm>

namespace palimpsest {

Segments every_n(const ModelCost& model, const PolicyOptions& options) {
  refuse_other_options("every_n", options, {PolicyOption::kN, PolicyOption::kKeepLast});
  const int layers = static_cast<int>(model.layers.size());
  if (!options.n) {
    throw UserError("activation_checkpointing.n: every_n needs it; give 1 to {}", layers);
  }
  if (*options.n < 1 || *options.n > layers) {
    throw UserError(
        "activation_checkpointing.n: {} is not allowed; the model has {}, give 1 to {}",
        *options.n,
        counted(layers, "layer"),
        layers);
  }
  std::vector<LayerRun> runs;
  for (int first = 0; first < layers; first += *options.n) {
    runs.push_back({first, std::min(first + *options.n, layers)});
  }
  return recompute_runs(model, std::move(runs), options, true);
}

} // namespace palimpsest
