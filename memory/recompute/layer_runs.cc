#include <palimpsest/memory/recompute/layer_runs.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <array>

namespace palimpsest {

Segments recompute_runs(
    const ModelCost& model,
    const std::vector<LayerRun>& runs,
    const PolicyOptions& options) {
  Segments segments;
  const auto layer = [&](int number) { return model.layers[static_cast<size_t>(number)].blocks; };
  const auto keep = [&](int begin, int end) {
    for (int number = begin; number < end && options.kept_tape != TapeMode::kFull; ++number) {
      segments.push_back({layer(number), options.kept_tape, {}});
    }
  };
  int next = 0;
  for (const auto [begin, end] : runs) {
    keep(next, begin);
    segments.push_back(recomputed({layer(begin).begin, layer(end - 1).end}, options.rerun_tape));
    next = end;
  }
  keep(next, static_cast<int>(model.layers.size()));
  return segments;
}

Segments recompute_runs(
    const ModelCost& model,
    std::vector<LayerRun> runs,
    const PolicyOptions& options,
    bool keep_last_by_default) {
  if (!runs.empty() && options.keep_last_segment.value_or(keep_last_by_default)) {
    runs.pop_back();
  }
  return recompute_runs(model, runs, options);
}

void refuse_other_options(
    std::string_view policy,
    const PolicyOptions& options,
    std::initializer_list<PolicyOption> known) {
  struct Given {
    PolicyOption option;
    std::string_view name;
    bool given;
  };
  const std::array<Given, 5> all{{
      {PolicyOption::kN, "n", options.n.has_value()},
      {PolicyOption::kSegments, "segments", options.segments.has_value()},
      {PolicyOption::kRecompute, "recompute", !options.recompute.empty()},
      {PolicyOption::kCount, "count", options.count.has_value()},
      {PolicyOption::kKeepLast, "keep_last_segment", options.keep_last_segment.has_value()},
  }};
  for (const Given& given : all) {
    if (given.given && std::find(known.begin(), known.end(), given.option) == known.end()) {
      throw UserError(
          "activation_checkpointing.{} does not apply to policy {}; remove it", given.name, policy);
    }
  }
  if (options.kept_tape == TapeMode::kNone || options.rerun_tape == TapeMode::kNone) {
    throw UserError("activation_checkpointing: a tape is lean or full, not none");
  }
}

} // namespace palimpsest
