#pragma once

// A whole run from a config: what it will do, then doing it.
//
//   Run run(load_config("run.yaml"));
//   run.full_report().peak(TierId::kDevice);       // known before a weight is read
//   run.prepare();                                  // states allocated, weights read
//   run.train({&progress});
//   run.write_model();
//
// Nothing behind this reads the config.

#include <palimpsest/core/config/derive.h>
#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/data/step_batches.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/engine/trainer.h>
#include <palimpsest/launcher/compose/model.h>
#include <palimpsest/launcher/compose/planning.h>
#include <palimpsest/parallel/sharding/local_param_store.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

class Run {
 public:
  /// Opens and checks model and data, measures the blocks and makes the plan; reads no weights and
  /// writes nothing. Installs the tracked CPU allocator and sets the threads of this process.
  explicit Run(RunConfig config);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const RunConfig& config() const {
    return config_;
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

  /// Micro-batches of a full step, its plan, and what the plan promises.
  int micro_batches() const;
  const PlannedStep& full_plan();
  const PlanReport& full_report();
  PlanBook& plans() {
    return *plans_;
  }

  /// Claims the output folder, allocates the states and fills the parameters. UserError where the
  /// folder holds a run's metrics.jsonl or model and training.restart is not set; EnvironmentError
  /// where it cannot be written, or the plan needs more memory than is available.
  void prepare();

  /// All steps. Records go to metrics.jsonl in the output folder and to the observers.
  void train(const std::vector<Observer*>& observers);

  /// The first step's accumulated gradients, before clipping, will be written to this safetensors
  /// file under the parameters' global names. Opens it, so an unwritable one is known now. Call
  /// before train().
  void dump_gradients(std::filesystem::path file);

  /// The likeliest token after `ids`, by the parameters as they are now.
  int64_t next_token(const std::vector<int64_t>& ids);

  /// The fp32 values of each unit as they are now, after prepare().
  UnitSource parameters();

  /// Writes the trained model to the output folder, as model/.
  std::filesystem::path write_model();

  std::filesystem::path output() const {
    return config_.training().output();
  }

 private:
  void make_optimizer_parts();

  RunConfig config_;
  BatchSizes batch_;
  MemoryContext memory_;
  std::optional<Model> model_;
  std::unique_ptr<StepBatches> batches_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<GradientNorm> norm_;
  Trainer::Settings settings_;
  std::vector<std::vector<GroupRange>> groups_; // by unit
  std::optional<PlanBook> plans_;
  std::vector<std::string> notes_;
  std::unique_ptr<LocalParamStore> store_;
  std::unique_ptr<Observer> gradient_dump_;
};

} // namespace palimpsest
