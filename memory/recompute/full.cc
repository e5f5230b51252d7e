#include <palimpsest/memory/recompute/layer_runs.h>

namespace palimpsest {

Segments full(const ModelCost& model, const PolicyOptions& options) {
  refuse_other_options("full", options, {PolicyOption::kKeepLast});
  std::vector<LayerRun> runs;
  for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
    runs.push_back({layer, layer + 1});
  }
  return recompute_runs(model, std::move(runs), options, false);
}

} // namespace palimpsest
