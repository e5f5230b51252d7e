#include <palimpsest/memory/recompute/layer_runs.h>

namespace palimpsest {

Segments none(const ModelCost& model, const PolicyOptions& options) {
  refuse_other_options("none", options, {});
  return recompute_runs(model, {}, options);
}

} // namespace palimpsest
