#pragma once

// Recompute policies: which layers keep their activations and which run again before their
// backward.
//
//   Segments segments = find_policy("uniform").decide(model, {.segments = 4});
//   Segments some = key_layers(model, {.recompute = {"layers.0", "layers\\.[2-5]", "7"}});
//
// A policy is a pure function of the model's costs and its options. Adding one is one file and one
// line in policies(). Only layers are counted; embedding and head keep full tapes.

#include <palimpsest/core/plan/segment.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// What a policy may be told; each reads its own and refuses what it does not know.
struct PolicyOptions {
  std::optional<int> n{}; ///< every_n: layers a segment
  std::optional<int> segments{}; ///< uniform: how many; default a quarter of the layers, rounded up
  std::vector<std::string>
      recompute{}; ///< key_layers: names, regular expressions over whole names, or indices
  std::optional<int> count{}; ///< key_layers: how many layers keep their activations
  std::optional<bool>
      keep_last_segment{}; ///< the last segment keeps its tapes, since its backward is next
  TapeMode kept_tape = TapeMode::kFull; ///< what layers that do not run again leave: lean or full
  TapeMode rerun_tape = TapeMode::kFull; ///< what a rerun leaves: lean or full
};

struct Policy {
  std::string_view name;
  std::string_view help;
  /// Throws UserError naming the option that is wrong, unknown to the policy, or missing.
  Segments (*decide)(const ModelCost& model, const PolicyOptions& options);
};

/// Every layer keeps its tape.
Segments none(const ModelCost& model, const PolicyOptions& options);

/// Every layer runs again by itself; only its input is kept. The last one too, unless
/// keep_last_segment.
Segments full(const ModelCost& model, const PolicyOptions& options);

/// Every n-th layer's input is kept: runs of n layers run again as one. The last run keeps its
/// tapes by default.
Segments every_n(const ModelCost& model, const PolicyOptions& options);

/// K segments that begin at layer floor(i * N / K). The last keeps its tapes by default.
Segments uniform(const ModelCost& model, const PolicyOptions& options);

/// uniform with K = round(sqrt(N)): the best interval of a uniform chain. (Chen et al. 2016,
/// arXiv:1604.06174.)
Segments sqrt_layers(const ModelCost& model, const PolicyOptions& options);

/// `recompute`: only these layers drop their activations, their inputs are kept. `count`: so many
/// layers keep theirs, the others run again: those that save the most bytes per second of
/// recomputation, so the costs must be measured.
Segments key_layers(const ModelCost& model, const PolicyOptions& options);

/// All of the above by name: none, full, every_n, uniform, sqrt, key_layers.
std::vector<Policy> policies();

/// Throws UserError listing the names.
Policy find_policy(std::string_view name);

} // namespace palimpsest
