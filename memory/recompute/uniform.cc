#include <palimpsest/memory/recompute/layer_runs.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>

namespace palimpsest {

Segments uniform(const ModelCost& model, const PolicyOptions& options) {
  refuse_other_options("uniform", options, {PolicyOption::kSegments, PolicyOption::kKeepLast});
  const int layers = static_cast<int>(model.layers.size());
  const int segments = options.segments.value_or((layers + 3) / 4);
  if (options.segments && (segments < 1 || segments > layers)) {
    throw UserError(
        "activation_checkpointing.segments: {} is not allowed; the model has {}, give 1 to "
        "{}",
        segments,
        counted(layers, "layer"),
        layers);
  }
  std::vector<LayerRun> runs;
  const auto cut = [&](int number) {
    return static_cast<int>(static_cast<int64_t>(layers) * number / segments);
  };
  for (int number = 0; number < segments; ++number) {
    runs.push_back({cut(number), cut(number + 1)});
  }
  return recompute_runs(model, std::move(runs), options, true);
}

} // namespace palimpsest
