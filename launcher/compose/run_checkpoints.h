#pragma once

// The checkpoints of a run: where it goes on from, and what it saves.
//
//   RunCheckpoints checkpoints(config, ranks, allow_change);    // refuses before anything long
//   checkpoints.claim();                                        // the output folder is this run's
//   checkpoints.read([&] { position = checkpoints.load(parts); });
//   checkpoints.save(position, parts);
//
// All of it is collective: the ranks see one output folder and decide alike.

#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/data/step_batches.h>
#include <palimpsest/core/engine/trainer.h>
#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/checkpoint_manifest.h>
#include <palimpsest/launcher/compose/model.h>
#include <palimpsest/launcher/compose/ranks.h>
#include <palimpsest/parallel/mesh/mesh_groups.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {

/// What a checkpoint is of.
struct RunParts {
  const Model& model;
  ShardedParamStore& store;
  const Mesh& mesh;
  const MeshGroups& groups;
  const StepBatches& batches;
  std::map<std::string, double> numbers; ///< what else goes on, by name
};

class RunCheckpoints {
 public:
  /// Decides where the run goes on from; writes nothing. UserError where the rules of the output
  /// folder (checkpoint_folder.h) refuse; with `allow_change` a checkpoint may be of a config with
  /// another meaning. Config and ranks outlive this.
  RunCheckpoints(const RunConfig& config, Ranks& ranks, bool allow_change);

  /// The checkpoint that the run goes on from; empty where it begins.
  const std::optional<std::filesystem::path>& start() const {
    return start_.checkpoint;
  }

  /// Makes the output folder this run's, for as long as this lives. EnvironmentError where it cannot
  /// be written.
  void claim();

  /// Runs a part that reads start(). With checkpoint.resume=auto one that turns out to be damaged
  /// makes way for the one before it, and the part runs again.
  void read(const std::function<void()>& part);

  /// Fills the states from start(). UserError where the data or the batch are others than the
  /// checkpoint's. Not collective: for read()'s part.
  TrainingPosition load(const RunParts& parts);

  /// What else the checkpoint that was loaded says, by name.
  const std::map<std::string, double>& numbers() const {
    return numbers_;
  }

  /// One with numbers that are not finite is refused, with a warning.
  void save(const TrainingPosition& position, const RunParts& parts);

  /// The newest of this run, read or saved; empty where there is none.
  const std::filesystem::path& newest() const {
    return newest_;
  }
  bool has(int64_t step) const;

  /// What was found and done: where the run goes on from.
  const std::vector<std::string>& notes() const {
    return start_.notes;
  }
  /// What went wrong without ending the run, on rank 0.
  const std::vector<std::string>& warnings() const {
    return warnings_;
  }

 private:
  void agree();

  const RunConfig& config_;
  Ranks& ranks_;
  std::filesystem::path output_;
  RunStart start_;
  FileDescriptor lock_; // on rank 0, as long as the run may write
  std::filesystem::path newest_;
  std::map<std::string, double> numbers_;
  std::vector<std::string> warnings_;
};

/// Saves after every so many steps.
class PeriodicSave final : public Observer {
 public:
  PeriodicSave(int64_t every, std::function<void()> save) : every_(every), save_(std::move(save)) {}
  void step_end(const StepRecord& record) override {
    if (record.step % every_ == 0) {
      save_();
    }
  }

 private:
  int64_t every_;
  std::function<void()> save_;
};

} // namespace palimpsest
