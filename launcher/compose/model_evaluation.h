#pragma once

// The held-out loss of a model that is not trained: a model folder's, or a checkpoint's.
//
//   ModelEvaluation evaluation(config, {.checkpoint = "runs/a/step-00001000"}, ranks);
//   evaluation.measure().loss;
//
// A config says the rest: data.validation, types, ranks. There are neither gradients nor optimizer
// states, and parameters have no fp32 copy beside the type that they compute in.

#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/data/open_data.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/launcher/compose/evaluation.h>
#include <palimpsest/launcher/compose/model.h>
#include <palimpsest/launcher/compose/planning.h>
#include <palimpsest/launcher/compose/ranks.h>
#include <palimpsest/parallel/mesh/mesh_groups.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

struct EvaluationRequest {
  /// Where the parameters come from; unset: from what the config's model section names.
  std::optional<std::filesystem::path> checkpoint = std::nullopt;
  /// Instead of data.validation, each with its format; empty: none.
  std::vector<DataFile> files = {};
};

class ModelEvaluation {
 public:
  /// Opens model and samples, plans, and reads the parameters. Collective: what throws throws on all
  /// ranks. UserError where nothing is held out, the checkpoint is of another model, or an evaluation
  /// does not fit the budget.
  ModelEvaluation(RunConfig config, EvaluationRequest request, Ranks& ranks);
  ModelEvaluation(const ModelEvaluation&) = delete;
  ModelEvaluation& operator=(const ModelEvaluation&) = delete;
  ~ModelEvaluation();

  /// Collective.
  EvaluationRecord measure();

  const Model& model() const {
    return *model_;
  }
  /// What is worth telling about model and samples.
  const std::vector<std::string>& notes() const {
    return notes_;
  }
  /// What an evaluation holds and takes, as planned.
  const PlanReport& report() {
    return plans_->evaluation().report;
  }
  MemoryContext& memory() {
    return memory_;
  }

 private:
  void open();
  std::unique_ptr<SampleSource> open_samples();
  void compare_ranks();
  void plan();
  void fill();
  int64_t micro_batch() const;

  RunConfig config_;
  EvaluationRequest request_;
  Ranks& ranks_;
  Mesh mesh_;
  MeshGroups groups_;
  MemoryContext memory_;
  std::optional<Model> model_;
  std::unique_ptr<SampleSource> samples_; // until batches are made of them
  std::unique_ptr<StepBatches> batches_; // until they are held out
  std::optional<PlanBook> plans_;
  std::unique_ptr<ShardedParamStore> store_;
  std::optional<HeldOut> held_out_;
  std::vector<std::string> notes_;
};

} // namespace palimpsest
