#pragma once

// Training of a chain that no config names, on one of the test's ranks.
//
//   ChainTask task{.build = two_branches, .fill = fill, .batch = batch, .micro_batches = 2};
//   on_ranks(2, [&](Communicator& world, MemoryContext& memory) {
//     ChainRun run(world, memory, task, {.zero = 3});
//     run.train(5);
//     run.save(folder);
//   });
//   const ChainEnd end = train_chain(2, task, {.zero = 3}, 5);      // or all of it at once

#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/core/optim/groups.h>
#include <palimpsest/core/optim/sgd.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/agreed_cost.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/launcher/compose/saved_states.h>
#include <palimpsest/memory/profile/profile.h>
#include <palimpsest/memory/recompute/policies.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/gather.h>
#include <palimpsest/parallel/sharding/step_agreement.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>

#include <fmt/format.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::testing {

struct ChainTask {
  std::function<Chain()> build;
  std::function<void(Chain& chain, const UnitSource& source)> fill;
  /// Global micro-batch g of a step, both from 0.
  std::function<MicroBatch(int64_t step, int g)> batch;
  int micro_batches = 1; ///< of all ranks, in a step
  std::shared_ptr<const Optimizer> optimizer = std::make_shared<Sgd>(0);
  double learning_rate = 0.1;
  double weight_decay = 0;
  std::string model_config = R"({"model_type": "mlp"})"; ///< config.json of an export
};

struct ChainLayout {
  int zero = 0;
  bool reproducible = true;
  std::string policy = "none";
};

inline std::string to_text(int ranks, const ChainLayout& layout) {
  return fmt::format(
      "{} ranks, zero {}, {}{}",
      ranks,
      layout.zero,
      layout.policy,
      layout.reproducible ? ", reproducible" : "");
}

class ChainRun {
 public:
  ChainRun(
      Communicator& world,
      MemoryContext& memory,
      const ChainTask& task,
      const ChainLayout& layout)
      : world_(world), memory_(memory), task_(task), layout_(layout),
        groups_(split_world(world, resolve_mesh(world.size(), {.zero = layout.zero}))),
        chain_(task.build()), store_(
                                  chain_.units,
                                  {.placement = {.zero = layout.zero},
                                   .reproducible = layout.reproducible,
                                   .moment_count = task.optimizer->moment_count()},
                                  decay(),
                                  groups_,
                                  memory),
        planned_(plan()) {
    task_.fill(chain_, source());
    refresh();
  }

  Chain& chain() {
    return chain_;
  }
  ShardedParamStore& store() {
    return store_;
  }
  const TrainingPosition& position() const {
    return position_;
  }
  const PlannedStep& planned() const {
    return *planned_;
  }
  UnitSource source() {
    return [this](int unit) {
      return UnitValues{store_.shard(unit).values(), store_.range(unit).begin};
    };
  }

  /// The steps before `until` that are not yet done.
  std::vector<StepRecord> train(int64_t until, std::vector<Observer*> observers = {}) {
    std::vector<UnitLayout> layouts;
    for (const int unit : planned_->job.trained_units(0)) {
      layouts.push_back(store_.layout(unit));
    }
    StepAgreement agreement(std::move(layouts), groups_, memory_);
    const FoldedNorm norm(2);
    Executor executor(
        chain_,
        {.params = store_,
         .optimizer = *task_.optimizer,
         .norm = norm,
         .memory = memory_,
         .agreer = &agreement,
         .observers = observers});
    Trainer::Settings settings{.seed = 42};
    settings.learning_rate = [rate = task_.learning_rate](int64_t) { return rate; };
    settings.begin = position_;
    settings.ranks = groups_.data;
    Batches batches(*this, until);
    Trainer trainer(
        executor, [this](int) { return planned_; }, batches, memory_, std::move(settings));
    Records records;
    observers.push_back(&records);
    trainer.run(observers);
    position_ = trainer.position();
    return records.all;
  }

  /// A checkpoint of the steps done, as a run's.
  std::filesystem::path save(const std::filesystem::path& output) {
    const SavedStates states(chain_, store_, groups_);
    Checkpoint checkpoint;
    CheckpointInfo& info = checkpoint.info;
    info.set_run_id("chain");
    info.set_step(position_.step);
    info.set_updates(position_.updates);
    info.set_seed(42);
    info.mutable_data()->set_epoch(0);
    info.mutable_data()->set_position(0);
    info.mutable_data()->set_consumed(0);
    info.mutable_data()->set_samples(0);
    info.mutable_layout()->set_ranks(world_.size());
    info.mutable_layout()->set_stages(1);
    info.mutable_layout()->set_replicate(groups_.mesh.replicate);
    info.mutable_layout()->set_shard(groups_.mesh.shard);
    info.mutable_layout()->set_zero(layout_.zero);
    checkpoint.model = new_layout(task_.model_config, declarations(chain_));
    checkpoint.pieces = states.pieces();
    SavingRanks saving{.rank = world_.rank(), .world = world_.size()};
    saving.agree = [this](bool ok) { return all_agree(world_, ok); };
    return save_checkpoint(output, checkpoint, states.source(), saving).folder;
  }

  /// Goes on from a checkpoint of any layout.
  void load(const std::filesystem::path& checkpoint) {
    const CheckpointReader reader(checkpoint);
    SavedStates(chain_, store_, groups_).load(reader, {});
    position_ = {.step = reader.info().step(), .updates = reader.info().updates()};
    refresh();
  }

  /// The parameters as a block sees them, whole, by name.
  std::map<std::string, std::vector<float>> parameters() {
    std::map<std::string, std::vector<float>> found;
    for (int number = 0; number < static_cast<int>(chain_.units.size()); ++number) {
      const ParamUnit& unit = *chain_.units[static_cast<size_t>(number)];
      if (layout_.zero == 3) {
        EXPECT_FALSE(unit.data().defined()) << "gathered after its last use: " << unit.name();
        store_.gather(number).wait();
      }
      const at::Tensor whole = numbers_in(unit, unit.data()).to(at::kFloat);
      for (const Parameter& parameter : unit.parameters()) {
        const float* first = whole.const_data_ptr<float>() + parameter.offset;
        found[parameter.name].assign(first, first + parameter.numel);
      }
      if (layout_.zero == 3) {
        store_.release(number);
      }
    }
    return found;
  }

 private:
  class Batches final : public BatchSource {
   public:
    Batches(ChainRun& run, int64_t steps) : run_(run), steps_(steps) {}
    int64_t step_count() const override {
      return steps_;
    }
    StepBatch load(int64_t step) override {
      StepBatch mine;
      for (int g = run_.groups_.data_rank(); g < run_.task_.micro_batches;
           g += run_.world_.size()) {
        mine.push_back(run_.task_.batch(step, g));
      }
      return mine;
    }

   private:
    ChainRun& run_;
    int64_t steps_;
  };

  std::vector<std::vector<GroupRange>> decay() const {
    std::vector<std::vector<GroupRange>> groups;
    for (const auto& unit : chain_.units) {
      auto& own = groups.emplace_back();
      if (unit->trainable() && unit->numel() > 0) {
        own.push_back({.begin = 0, .end = unit->numel(), .weight_decay = task_.weight_decay});
      }
    }
    return groups;
  }

  std::shared_ptr<const PlannedStep> plan() {
    JobDescription description;
    description.model = profile(
        chain_,
        task_.batch(0, groups_.data_rank()),
        memory_,
        {.moment_count = task_.optimizer->moment_count(), .repeats = 1});
    if (world_.size() > 1) {
      agree_on_cost(description.model, world_);
    }
    description.stages = {{0, static_cast<int>(description.model.blocks.size())}};
    description.micro_batches = task_.micro_batches / world_.size();
    description.mesh = groups_.mesh;
    description.placement = {.zero = layout_.zero};
    description.reproducible = layout_.reproducible;
    Job job(std::move(description));
    PlanOptions options{.window = window_of_blocks(job, 3)};
    options.segments = find_policy(layout_.policy).decide(job.model(), {});
    Plans plans = compose(job, find_schedule("1f1b"), options);
    simulate(plans, job);
    return std::make_shared<PlannedStep>(std::move(job), std::move(plans.front()));
  }

  void refresh() {
    for (int unit = 0; unit < static_cast<int>(chain_.units.size()); ++unit) {
      store_.refresh(unit);
    }
  }

  Communicator& world_;
  MemoryContext& memory_;
  const ChainTask& task_;
  ChainLayout layout_;
  MeshGroups groups_;
  Chain chain_;
  ShardedParamStore store_;
  std::shared_ptr<const PlannedStep> planned_;
  TrainingPosition position_;
};

/// What a run ends with, on each of its ranks.
struct ChainEnd {
  std::vector<StepRecord> records;
  std::map<std::string, std::vector<float>> parameters;
};

/// Rank 0's end of a run of so many steps; all ranks must have the same.
inline ChainEnd train_chain(
    int ranks,
    const ChainTask& task,
    const ChainLayout& layout,
    int64_t steps) {
  std::mutex mutex;
  std::map<int, ChainEnd> ends;
  on_ranks(ranks, [&](Communicator& world, MemoryContext& memory) {
    ChainRun run(world, memory, task, layout);
    ChainEnd mine{.records = run.train(steps), .parameters = run.parameters()};
    const std::lock_guard lock(mutex);
    ends[world.rank()] = std::move(mine);
  });
  for (const auto& [rank, end] : ends) {
    EXPECT_EQ(end.parameters, ends.at(0).parameters) << "rank " << rank;
    for (size_t step = 0; step < end.records.size(); ++step) {
      EXPECT_EQ(end.records[step].loss, ends.at(0).records[step].loss) << "rank " << rank;
      EXPECT_EQ(end.records[step].tokens, ends.at(0).records[step].tokens) << "rank " << rank;
    }
  }
  return std::move(ends.at(0));
}

} // namespace palimpsest::testing
