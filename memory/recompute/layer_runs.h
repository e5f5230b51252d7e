#pragma once

// From runs of layers to segments of blocks: what all policies share.
//
//   return recompute_runs(model, {{0, 4}, {4, 8}}, options);      // two segments of four layers run again

#include <palimpsest/memory/recompute/policies.h>

#include <initializer_list>
#include <vector>

namespace palimpsest {

/// Layers begin <= layer < end.
struct LayerRun {
  int begin = 0;
  int end = 0;
};

/// The runs, in order and disjoint, run again, each as one segment; other layers keep
/// options.kept_tape.
Segments recompute_runs(
    const ModelCost& model,
    const std::vector<LayerRun>& runs,
    const PolicyOptions& options);

/// The same, the last run only where options.keep_last_segment (or the policy's default) does not
/// keep it.
Segments recompute_runs(
    const ModelCost& model,
    std::vector<LayerRun> runs,
    const PolicyOptions& options,
    bool keep_last_by_default);

/// The options that belong to some policies only.
enum class PolicyOption { kN, kSegments, kRecompute, kCount, kKeepLast };

/// Throws UserError where an option outside `known` is set, or a tape is none.
void refuse_other_options(
    std::string_view policy,
    const PolicyOptions& options,
    std::initializer_list<PolicyOption> known);

} // namespace palimpsest
