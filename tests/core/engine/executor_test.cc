// Covers: core/engine/block_ops.cc
#include <palimpsest/core/engine/executor.h>

#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/engine/trainer.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/core/optim/sgd.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/memory/profile/profile.h>
#include <palimpsest/memory/recompute/policies.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>
#include <palimpsest/tests/core/engine/scalar_chain.h>

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

using testing::Counts;
using testing::scalar_chain;
using testing::token_losses;

/// Keeps copies of what leaves the device in the order of its tensors.
class CopyStore final : public SlotStore {
 public:
  Ticket stash(const Slot& slot, TierId, std::vector<at::Tensor*> tensors) override {
    std::vector<at::Tensor>& copies = copies_[slot];
    copies.clear();
    for (const at::Tensor* tensor : tensors) {
      copies.push_back(tensor->defined() ? tensor->clone() : at::Tensor());
    }
    ++stashed;
    return {};
  }
  Ticket fetch(const Slot& slot, TierId, std::vector<at::Tensor*> tensors) override {
    for (size_t index = 0; index < tensors.size(); ++index) {
      *tensors[index] = copies_.at(slot)[index];
    }
    return {};
  }
  void drop(const Slot& slot, TierId) override {
    copies_.erase(slot);
  }
  int stashed = 0;
  size_t left() const {
    return copies_.size();
  }

 private:
  std::map<Slot, std::vector<at::Tensor>> copies_;
};

struct Technique {
  std::string policy = "none";
  PolicyOptions options = {};
  std::string schedule = "1f1b";
  Placement placement = {};
  double learning_rate = 0;
  int64_t fail_at = 0; // the step's allocation that fails; 0: none
};

/// A chain of scalars, all 1 unless set, trained by SGD.
class ScalarRun {
 public:
  ScalarRun(int units, const std::vector<int>& use, float weight = 1)
      : chain_(scalar_chain(units, use, counts_)) {
    install_cpu_allocator();
    std::vector<std::vector<GroupRange>> groups;
    for (int unit = 0; unit < units; ++unit) {
      groups.push_back({{.begin = 0, .end = 1}});
    }
    store_ = std::make_unique<ShardedParamStore>(
        chain_.units, ShardedParamStore::Settings{}, groups, MeshGroups{}, memory_);
    for (int unit = 0; unit < units; ++unit) {
      store_->shard(unit).parameters.fill_(weight);
    }
  }

  StepOutcome step(const StepBatch& batches, const Technique& technique = {}) {
    const ScopedContext here(memory_);
    const int throw_at = std::exchange(counts_.throw_at, -1);
    const ModelCost cost = profile(chain_, batches.front(), memory_, {});
    counts_ = {.throw_at = throw_at};
    JobDescription description;
    description.model = cost;
    description.stages = {{0, static_cast<int>(cost.blocks.size())}};
    description.micro_batches = static_cast<int>(batches.size());
    description.placement = technique.placement;
    const Job job(std::move(description));
    PlanOptions options;
    options.segments = find_policy(technique.policy).decide(cost, technique.options);
    options.read_ahead = 0;
    const Plans plans = compose(job, find_schedule(technique.schedule), options);
    report_ = simulate(plans, job);
    int64_t targets = 0;
    for (const MicroBatch& batch : batches) {
      targets += batch.target_count;
    }
    Executor executor(
        chain_,
        {.params = *store_, .optimizer = sgd_, .norm = norm_, .memory = memory_, .slots = &slots_});
    memory_.set_allocation_hook(fail_at_allocation(technique.fail_at));
    StepOutcome outcome = executor.run(
        plans.front(),
        job,
        {.batches = batches,
         .loss_scale = 1.0 / static_cast<double>(targets),
         .learning_rate = technique.learning_rate});
    memory_.set_allocation_hook({});
    return outcome;
  }

  float weight(int unit = 0) {
    return store_->shard(unit).parameters.item<float>();
  }

  Counts counts_;
  MemoryContext memory_{"rank 0"};
  Chain chain_;
  std::unique_ptr<ShardedParamStore> store_;
  Sgd sgd_{0};
  FoldedNorm norm_{2};
  CopyStore slots_;
  PlanReport report_;
};

// One token of loss 4 and three of loss 1: their mean is 7/4, the mean of the means would be 2.5.
TEST(Executor, LossIsSumOverTargetsOfTheWholeStep) {
  ScalarRun run(1, {0});
  const StepOutcome outcome =
      run.step({token_losses({4}), token_losses({1, 1, 1})}, {.learning_rate = 1});
  EXPECT_DOUBLE_EQ(outcome.loss_sum / 4, 1.75);
  EXPECT_DOUBLE_EQ(outcome.grad_norm, 1.75);
  EXPECT_FLOAT_EQ(run.weight(), 1 - 1.75F);
}

TEST(Executor, MicroBatchWithoutTargetsAddsNothing) {
  for (const bool first : {true, false}) {
    for (const char* policy : {"none", "full"}) {
      ScalarRun run(1, {0});
      StepBatch batches = {token_losses({2, 4}), token_losses({-1, -1})};
      if (first) {
        std::swap(batches[0], batches[1]);
      }
      const StepOutcome outcome = run.step(batches, {.policy = policy});
      EXPECT_DOUBLE_EQ(outcome.loss_sum / 2, 3);
      EXPECT_DOUBLE_EQ(outcome.grad_norm, 3);
    }
  }
}

// y = w (w x): dy/dw = 2 w x = 4 at w = 2, x = 1, each use in a segment of its own.
TEST(Executor, WeightUsedTwiceGetsBothGradientsOnce) {
  for (const char* policy : {"none", "full"}) {
    ScalarRun run(1, {0, 0}, 2);
    const StepOutcome outcome = run.step({token_losses({1})}, {.policy = policy});
    EXPECT_DOUBLE_EQ(outcome.loss_sum, 4);
    EXPECT_DOUBLE_EQ(outcome.grad_norm, 4);
  }
}

TEST(Executor, ExecutesExactlyThePlansBlocks) {
  const std::vector<int> use = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const std::vector<std::tuple<std::string, PolicyOptions, int>> cases = {
      {"none", {}, 12},
      {"full", {}, 0},
      {"every_n", {.n = 3}, 3},
      {"uniform", {.segments = 4}, 3},
      {"key_layers", {.count = 5}, 5},
      {"sqrt", {}, 4}};
  for (const auto& [policy, options, kept] : cases) {
    for (const int micro_batches : {1, 3}) {
      ScalarRun run(12, use);
      const StepBatch batches(static_cast<size_t>(micro_batches), token_losses({1, 2}));
      const StepOutcome outcome = run.step(batches, {.policy = policy, .options = options});
      const int executions =
          (3 * 12 - kept) * micro_batches; // 2N forward and backward, N - K again
      EXPECT_EQ(run.counts_.forwards + run.counts_.backwards, executions) << policy;
      EXPECT_EQ(outcome.forwards, run.report_.ranks.front().forwards) << policy;
      EXPECT_EQ(outcome.forwards - micro_batches, run.counts_.forwards) << policy;
      EXPECT_EQ(run.counts_.live_tapes, 0) << policy;
    }
  }
}

// Whatever the operation, memory that runs out before AGREE leaves everything as it was, and the
// step may be run again.
TEST(Executor, OutOfMemoryBeforeAgreeChangesNothing) {
  const StepBatch batches = {token_losses({0.3F, 1.7F}), token_losses({2.1F, 0.4F, 0.9F})};
  for (const char* policy : {"none", "full"}) {
    for (const char* schedule : {"1f1b", "zb_h1"}) {
      for (const TierId tier : {TierId::kDevice, TierId::kHost}) {
        Technique technique{.policy = policy, .schedule = schedule, .learning_rate = 0.1};
        technique.placement.activations = tier;
        ScalarRun plain(3, {0, 1, 2, 1}, 1.1F);
        const StepOutcome expected = plain.step(batches, technique);
        ScalarRun run(3, {0, 1, 2, 1}, 1.1F);
        int failures = 0;
        for (int64_t k = 1;; ++k) {
          SCOPED_TRACE(std::string(policy) + " " + schedule + ", allocation " + std::to_string(k));
          technique.fail_at = k;
          const StepOutcome outcome = run.step(batches, technique);
          EXPECT_EQ(run.counts_.live_tapes, 0);
          EXPECT_EQ(run.slots_.left(), 0);
          if (!outcome.exhausted) {
            EXPECT_EQ(outcome.loss_sum, expected.loss_sum);
            EXPECT_EQ(outcome.grad_norm, expected.grad_norm);
            break;
          }
          ++failures;
          ASSERT_TRUE(outcome.shortage);
          EXPECT_GT(outcome.shortage->refused.bytes, 0);
          EXPECT_EQ(run.weight(), 1.1F);
          EXPECT_EQ(run.memory_.usage(Category::kActivations).live, 0);
          EXPECT_EQ(run.memory_.usage(Category::kGradients).live, 0);
        }
        EXPECT_GT(failures, 20);
        for (int unit = 0; unit < 3; ++unit) {
          EXPECT_EQ(run.weight(unit), plain.weight(unit));
        }
      }
    }
  }
}

// Schedules, split backwards and slots that leave the device change no bit.
TEST(Executor, SchedulesAndOffloadGiveThePlainStep) {
  const std::vector<int> use = {0, 1, 2, 1, 3};
  const StepBatch batches = {token_losses({0.3F, 1.7F}), token_losses({2.1F, 0.4F, 0.9F})};
  ScalarRun plain(4, use, 1.1F);
  const StepOutcome expected = plain.step(batches, {.learning_rate = 0.1});
  std::vector<Technique> techniques;
  for (const char* policy : {"none", "full"}) {
    for (const char* schedule : {"1f1b", "gpipe", "zb_h1"}) {
      for (const TierId tier : {TierId::kDevice, TierId::kHost, TierId::kDisk}) {
        Placement placement;
        placement.optimizer = placement.activations = tier;
        techniques.push_back(
            {.policy = policy, .schedule = schedule, .placement = placement, .learning_rate = 0.1});
      }
    }
  }
  for (const Technique& technique : techniques) {
    ScalarRun run(4, use, 1.1F);
    const StepOutcome outcome = run.step(batches, technique);
    const std::string what = technique.policy + " " + technique.schedule + " " +
        std::string(to_text(technique.placement.activations));
    EXPECT_EQ(outcome.loss_sum, expected.loss_sum) << what;
    EXPECT_EQ(outcome.grad_norm, expected.grad_norm) << what;
    for (int unit = 0; unit < 4; ++unit) {
      EXPECT_EQ(run.weight(unit), plain.weight(unit)) << what;
    }
    EXPECT_EQ(run.slots_.stashed > 0, technique.placement.activations != TierId::kDevice) << what;
    EXPECT_EQ(run.counts_.live_tapes, 0) << what;
  }
}

TEST(Executor, ChangesNothingWhereTheGradientIsNotFinite) {
  ScalarRun run(2, {0, 1});
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, std::numeric_limits<float>::quiet_NaN()}) {
    MicroBatch batch = token_losses({1, 1});
    batch.inputs.data_ptr<float>()[1] = bad;
    const StepOutcome outcome = run.step({batch}, {.learning_rate = 0.5});
    EXPECT_FALSE(outcome.finite);
    EXPECT_EQ(run.weight(0), 1);
    EXPECT_EQ(run.weight(1), 1);
    EXPECT_EQ(run.counts_.commits, 0);
    EXPECT_EQ(run.counts_.discards, 2);
  }
  EXPECT_TRUE(run.step({token_losses({1})}, {.learning_rate = 0.5}).finite);
  EXPECT_EQ(run.weight(0), 0.5F);
}

TEST(Executor, AFailedStepLeavesNothingBehindAndCanRunAgain) {
  for (int failing = 0; failing < 4; ++failing) {
    ScalarRun run(2, {0, 1});
    const StepBatch batches = {token_losses({1, 3}), token_losses({2})};
    const int64_t before = run.memory_.total().live;
    ScalarRun straight(2, {0, 1});
    const double norm = straight.step(batches, {.policy = "full", .learning_rate = 0.5}).grad_norm;
    run.counts_.throw_at = failing;
    EXPECT_THROW(run.step(batches, {.policy = "full", .learning_rate = 0.5}), std::runtime_error);
    EXPECT_EQ(run.counts_.live_tapes, 0);
    EXPECT_EQ(run.memory_.total().live, before);
    EXPECT_EQ(run.weight(0), 1);
    run.counts_.throw_at = -1;
    EXPECT_EQ(run.step(batches, {.policy = "full", .learning_rate = 0.5}).grad_norm, norm);
    EXPECT_EQ(run.weight(0), straight.weight(0));
  }
}

} // namespace
} // namespace palimpsest
