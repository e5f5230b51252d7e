#pragma once

// What `palimpsest eval` is asked for: which parameters, which samples, by which settings.
//
//   const EvalTarget target = find_eval_target({.target = "run.yaml"});
//   ModelEvaluation evaluation(target.config, target.request, ranks);

#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/launcher/compose/model_evaluation.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

struct EvalOptions {
  std::string target; ///< a config, a checkpoint, an output folder, a model folder or hub id
  std::vector<std::string> overrides;
  std::string model; ///< folder, instead of the run's own model
  std::string checkpoint; ///< the same
  std::vector<std::string> data; ///< files, instead of data.validation
  std::string format; ///< of these
  std::optional<int64_t> samples;
  std::string json;
};

/// What is to be evaluated, and by which settings.
struct EvalTarget {
  RunConfig config;
  EvaluationRequest request;
  std::string model; ///< where the parameters come from, for people
  std::vector<std::string> notes; ///< why these
};

/// UserError where the target is nothing of this, holds no trained model, or options contradict it.
EvalTarget find_eval_target(const EvalOptions& options);

} // namespace palimpsest
