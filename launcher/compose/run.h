#pragma once

// A whole run from a config: what it will do, then doing it.
//
//   Run run(load_config("run.yaml"), ranks);       // on every rank
//   run.full_report().peak(TierId::kDevice);       // known before a weight is read
//   run.prepare();                                  // states allocated, weights or a checkpoint read
//   if (run.train({&progress})) {                   // false: it was asked to stop, and has saved
//     run.write_model();
//   }
//
// Nothing behind this reads the config. What throws before the first step throws on all ranks.

#include <palimpsest/core/config/derive.h>
#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/data/step_batches.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/engine/trainer.h>
#include <palimpsest/launcher/compose/evaluation.h>
#include <palimpsest/launcher/compose/gradient_dump.h>
#include <palimpsest/launcher/compose/model.h>
#include <palimpsest/launcher/compose/planning.h>
#include <palimpsest/launcher/compose/ranks.h>
#include <palimpsest/launcher/compose/run_checkpoints.h>
#include <palimpsest/launcher/compose/whole_units.h>
#include <palimpsest/parallel/mesh/mesh_groups.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

class CheckpointReader;

class Run {
 public:
  /// Decides where the run goes on from (run_checkpoints.h), opens and checks model and data,
  /// measures the blocks and makes the plan, unless nothing is left to do; reads no weights and
  /// writes nothing. Installs the tracked CPU allocator and sets the threads of this rank. Where a
  /// rank is asked to stop meanwhile, or in prepare(), an Error with kStoppedExitCode ends it.
  /// Ends on all ranks, with a UserError naming the first difference, where their models, data or
  /// plans differ: that would hang or, worse, train something else. With `allow_change` it may go on
  /// from a checkpoint of a config with another meaning. `ranks` outlive the run; where they are
  /// only planned, the output folder is looked at for a model whose own folder is gone alone.
  Run(RunConfig config, Ranks& ranks, bool allow_change = false);
  /// A single process.
  explicit Run(RunConfig config, bool allow_change = false);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const RunConfig& config() const {
    return config_;
  }
  const Ranks& ranks() const {
    return ranks_;
  }
  const Mesh& mesh() const {
    return mesh_;
  }
  const BatchSizes& batch() const {
    return batch_;
  }
  /// What is worth telling about data and batches.
  const std::vector<std::string>& notes() const {
    return notes_;
  }
  Model& model() {
    return *model_;
  }
  StepBatches& batches() {
    return *batches_;
  }
  MemoryContext& memory() {
    return memory_;
  }
  /// Samples of data.validation that evaluations take; 0: nothing is held out.
  int64_t held_out() const {
    return evaluated_.samples;
  }

  /// Whether a checkpoint has all steps and evaluations of this run, and its model is written: there
  /// is nothing to do. A plan is only made, by all ranks, where somebody asks for it.
  bool nothing_left() const {
    return nothing_left_;
  }

  /// Micro-batches of a full step, its plan, and what the plan promises.
  int micro_batches() const;
  const PlannedStep& full_plan();
  const PlanReport& full_report();
  PlanBook& plans();

  /// Claims the output folder, allocates the states and fills them: from the checkpoint that the
  /// run goes on from, else the parameters from model folder or initialisation. EnvironmentError
  /// where the folder cannot be written, or the plan needs more memory than is available.
  void prepare();

  /// The remaining steps, or those until evaluation.patience is used up. Records go to the output
  /// folder (run_logs.h) and to the observers; evaluations and checkpoints as the config says, and
  /// one of each at the end. False where it was asked to stop before the last step.
  bool train(const std::vector<Observer*>& observers);

  /// What prepare() found and did: where the run goes on from.
  const std::vector<std::string>& start_notes() const {
    return checkpoints_->notes();
  }

  /// What went wrong without ending the run, on rank 0.
  const std::vector<std::string>& warnings() const {
    return checkpoints_->warnings();
  }

  /// What the evaluations so far decide by, those of the runs that this one goes on from included.
  const EvaluationState& evaluated() const {
    return evaluated_;
  }
  /// Steps done, by this run and by those that it goes on from.
  const TrainingPosition& position() const {
    return position_;
  }
  /// Whether a checkpoint holds all that was done; one with numbers that are not finite is refused.
  bool saved() const;
  /// The newest checkpoint; empty where there is none.
  const std::filesystem::path& checkpoint() const {
    return checkpoints_->newest();
  }

  /// The first step's accumulated gradients, before clipping, will be written to this safetensors
  /// file under the parameters' global names. Opens it, so an unwritable one is known now. Call
  /// before train().
  void dump_gradients(std::filesystem::path file);

  /// The likeliest token after `ids`, by the parameters as they are now. For a single process.
  int64_t next_token(const std::vector<int64_t>& ids);

  /// The fp32 values of each unit as they are now, after prepare(): this rank's part of them.
  UnitSource parameters();

  /// Writes the trained model to the output folder: as model/, or as adapter/ where adapters are
  /// trained. On several ranks, rank 0 does.
  std::filesystem::path write_model();

  /// Where write_model() writes.
  std::filesystem::path model_folder() const;

  std::filesystem::path output() const {
    return config_.training().output();
  }
  /// Where the model of the lowest held-out loss is kept, if it is: written as write_model() does.
  std::filesystem::path best_model() const {
    return output() / "best";
  }

 private:
  Run(RunConfig config, std::unique_ptr<Ranks> own, bool allow_change);
  void open();
  bool done_before(const CheckpointReader& reader) const;
  void compare_ranks();
  void plan();
  void compare_plans();
  void allocate();
  double first_scale() const;
  RunParts parts();
  std::vector<std::unique_ptr<Observer>> logs();
  std::unique_ptr<Evaluations> evaluations(const std::vector<Observer*>& observers);
  bool train_observed_by(const std::vector<Observer*>& observers);
  bool train_on(
      Trainer& trainer,
      Evaluations* evaluations,
      const std::vector<Observer*>& observers);
  void write_model_to(const std::filesystem::path& folder);
  void lead_with_whole(
      const WholeUnits::Part& part,
      const std::function<void(const UnitSource&)>& use);

  std::unique_ptr<Ranks> own_ranks_; // of a single process
  Ranks& ranks_;
  RunConfig config_;
  Mesh mesh_;
  MeshGroups groups_;
  BatchSizes batch_;
  MemoryContext memory_;
  std::optional<Model> model_;
  std::unique_ptr<StepBatches> batches_;
  std::unique_ptr<SampleSource> held_out_samples_; // until the first evaluation; null: none
  std::optional<HeldOut> held_out_;
  EvaluationState evaluated_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<GradientNorm> norm_;
  Trainer::Settings settings_;
  std::vector<std::vector<GroupRange>> parameter_groups_; // by unit
  std::optional<PlanBook> plans_;
  std::vector<std::string> notes_;
  std::unique_ptr<ShardedParamStore> store_;
  std::unique_ptr<GradientDump> gradient_dump_;
  std::optional<RunCheckpoints> checkpoints_; // none of a run that is only planned
  bool nothing_left_ = false;
  TrainingPosition position_;
};

} // namespace palimpsest
