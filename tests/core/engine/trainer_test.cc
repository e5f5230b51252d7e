#include <palimpsest/core/engine/trainer.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/core/optim/schedule.h>
#include <palimpsest/core/optim/sgd.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/memory/profile/profile.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>
#include <palimpsest/tests/core/engine/scalar_chain.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

using testing::Counts;
using ::testing::ElementsAre;
using testing::scalar_chain;
using testing::token_losses;

constexpr std::chrono::milliseconds kLoadTime{1};

class GivenBatches final : public BatchSource {
 public:
  explicit GivenBatches(std::vector<StepBatch> steps) : steps_(std::move(steps)) {}
  int64_t step_count() const override {
    return static_cast<int64_t>(steps_.size());
  }
  StepBatch load(int64_t step) override {
    std::this_thread::sleep_for(kLoadTime);
    return steps_.at(static_cast<size_t>(step));
  }

 private:
  std::vector<StepBatch> steps_;
};

class Records final : public Observer {
 public:
  void step_end(const StepRecord& record) override {
    all.push_back(record);
  }
  std::vector<double> rates() const {
    std::vector<double> found;
    for (const StepRecord& record : all) {
      found.push_back(record.learning_rate);
    }
    return found;
  }
  std::vector<StepRecord> all;
};

/// y = w x with one scalar w, first 1; the loss of a token is its y. So loss = w m and gradient =
/// m, where m is the mean of a step's targets, and SGD takes w to w - rate m.
class TrainerRun {
 public:
  TrainerRun(std::vector<StepBatch> steps, Trainer::Settings settings)
      : batches_(std::move(steps)), settings_(std::move(settings)) {
    install_cpu_allocator();
    here_.emplace(memory_);
    store_.emplace(
        chain_.units,
        ShardedParamStore::Settings{},
        std::vector<std::vector<GroupRange>>{{{.begin = 0, .end = 1}}},
        MeshGroups{},
        memory_);
    store_->shard(0).parameters.fill_(1);
    cost_ = profile(chain_, token_losses({1, 1, 1, 1}), memory_, {});
    executor_.emplace(
        chain_,
        Executor::Services{.params = *store_, .optimizer = sgd_, .norm = norm_, .memory = memory_});
  }

  Records train() {
    Records records;
    Trainer trainer(
        *executor_,
        [this](int micro_batches) { return plan(micro_batches); },
        batches_,
        memory_,
        settings_);
    finished = trainer.run({&records});
    position = trainer.position();
    return records;
  }

  double weight() {
    return store_->shard(0).parameters.item<float>();
  }

  std::vector<int> planned; // the numbers of micro-batches that plans were asked for
  TrainingPosition position;
  bool finished = false;

 private:
  std::shared_ptr<const PlannedStep> plan(int micro_batches) {
    planned.push_back(micro_batches);
    JobDescription description;
    description.model = cost_;
    description.stages = {{0, static_cast<int>(cost_.blocks.size())}};
    description.micro_batches = micro_batches;
    Job job(std::move(description));
    Plans plans = compose(job, find_schedule("1f1b"), {});
    return std::make_shared<PlannedStep>(std::move(job), std::move(plans.front()));
  }

  Counts counts_;
  MemoryContext memory_{"rank 0"};
  std::optional<ScopedContext> here_;
  Chain chain_ = scalar_chain(1, {0}, counts_);
  std::optional<ShardedParamStore> store_;
  ModelCost cost_;
  Sgd sgd_{0};
  FoldedNorm norm_{2};
  std::optional<Executor> executor_;
  GivenBatches batches_;
  Trainer::Settings settings_;
};

Trainer::Settings rate(double learning_rate) {
  Trainer::Settings settings;
  settings.learning_rate = [learning_rate](int64_t) { return learning_rate; };
  return settings;
}

TEST(Trainer, RecordsHaveLossNormRateAndTokensOfTheWholeStep) {
  // Means over 4 and 2 targets: 1.75 and 3. A token without a target is a token all the same.
  TrainerRun run(
      {{token_losses({4}), token_losses({1, 1, 1})}, {token_losses({2, -1}), token_losses({4})}},
      rate(0.25));
  const Records records = run.train();
  ASSERT_EQ(records.all.size(), 2U);
  const double weight = 1 - 0.25 * 1.75;
  EXPECT_DOUBLE_EQ(records.all[0].loss, 1.75);
  EXPECT_DOUBLE_EQ(records.all[0].grad_norm, 1.75);
  EXPECT_EQ(records.all[0].tokens, 4);
  EXPECT_DOUBLE_EQ(records.all[1].loss, weight * 3); // exact in fp32: all are multiples of 1/16
  EXPECT_DOUBLE_EQ(records.all[1].grad_norm, 3);
  EXPECT_EQ(records.all[1].tokens, 3);
  EXPECT_DOUBLE_EQ(run.weight(), weight - 0.25 * 3);
  for (size_t index = 0; index < 2; ++index) {
    const StepRecord& record = records.all[index];
    EXPECT_EQ(record.step, static_cast<int64_t>(index) + 1);
    EXPECT_EQ(record.learning_rate, 0.25);
    EXPECT_FALSE(record.skipped);
    EXPECT_GT(record.step_time_s, 0);
    EXPECT_DOUBLE_EQ(record.tokens_per_s * record.step_time_s, static_cast<double>(record.tokens));
    EXPECT_GE(record.data_wait_s, std::chrono::duration<double>(kLoadTime).count());
    EXPECT_LT(record.data_wait_s, record.step_time_s);
    EXPECT_GT(record.peak_device_bytes, 0);
    EXPECT_GT(record.peak_rss_bytes, record.peak_device_bytes);
  }
}

// A scalar s = 1 on x = 3 with the mean of y = s x as its loss: ds = 3, and SGD at 0.1 gives 0.7.
TEST(Trainer, AScalarParameterTrains) {
  TrainerRun run({{token_losses({3, 3})}}, rate(0.1));
  EXPECT_DOUBLE_EQ(run.train().all.front().grad_norm, 3);
  EXPECT_FLOAT_EQ(static_cast<float>(run.weight()), 0.7F);
}

TEST(Trainer, ClipsByTheNormOfTheWholeStep) {
  Trainer::Settings settings = rate(1);
  settings.clip = [](double norm) { return clip_factor(norm, 0.5); };
  TrainerRun run({{token_losses({1}), token_losses({3})}}, std::move(settings));
  EXPECT_DOUBLE_EQ(run.train().all.front().grad_norm, 2); // as it was before clipping
  EXPECT_NEAR(run.weight(), 0.5, 1e-6);
}

// Rates 1/2, 1/4, 1/8 by updates: a skipped step shows the rate that it would have used, and the
// next one uses it.
TEST(Trainer, SkippedStepsAreMarkedAndTheRateWaits) {
  Trainer::Settings settings;
  settings.learning_rate = [](int64_t updates) {
    return std::ldexp(0.5, -static_cast<int>(updates));
  };
  const float infinity = std::numeric_limits<float>::infinity();
  MicroBatch bad = token_losses({1, 1});
  bad.inputs.data_ptr<float>()[1] = infinity;
  MicroBatch worse = token_losses({1, 1});
  worse.inputs.data_ptr<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  const MicroBatch good = token_losses({1});
  TrainerRun run(
      {{good}, {token_losses({-1, -1}), token_losses({-1})}, {good}, {bad}, {good, worse}, {good}},
      std::move(settings));
  const Records records = run.train();
  std::vector<bool> skipped;
  for (const StepRecord& record : records.all) {
    skipped.push_back(record.skipped);
  }
  EXPECT_THAT(skipped, ElementsAre(false, true, false, true, true, false));
  EXPECT_THAT(records.rates(), ElementsAre(0.5, 0.25, 0.25, 0.125, 0.125, 0.125));
  EXPECT_EQ(run.position.updates, 3);
  EXPECT_DOUBLE_EQ(run.weight(), 1 - 0.5 - 0.25 - 0.125);
  EXPECT_EQ(records.all[1].loss, 0); // without a target there is no loss
  EXPECT_EQ(records.all[1].grad_norm, 0);
  EXPECT_EQ(records.all[1].tokens, 3);
  EXPECT_FALSE(std::isfinite(records.all[3].loss));
  EXPECT_FALSE(std::isfinite(records.all[4].loss));
  EXPECT_DOUBLE_EQ(records.all[5].loss, 1 - 0.5 - 0.25); // nothing of them is left
}

TEST(Trainer, AnEpochsLastWindowMayHaveFewerMicroBatches) {
  const MicroBatch two = token_losses({2, 2});
  TrainerRun run({{two, two, two}, {two, two, two}, {two, token_losses({4})}}, rate(0));
  const Records records = run.train();
  EXPECT_THAT(run.planned, ElementsAre(3, 3, 2));
  EXPECT_DOUBLE_EQ(records.all[1].loss, 2);
  EXPECT_DOUBLE_EQ(records.all[2].loss, 8.0 / 3);
}

TEST(Trainer, StopsBeforeAStepWhenAskedAndGoesOnFromThere) {
  const std::vector<StepBatch> steps(5, {token_losses({1})});
  Trainer::Settings settings = rate(0.125);
  int asked = 0;
  settings.stop_requested = [&] { return ++asked == 4; };
  TrainerRun stopped(steps, settings);
  EXPECT_EQ(stopped.train().all.size(), 3U);
  EXPECT_FALSE(stopped.finished);
  EXPECT_EQ(stopped.position.step, 3);
  settings = rate(0.125);
  settings.begin = stopped.position;
  TrainerRun rest(steps, settings);
  const Records records = rest.train();
  EXPECT_TRUE(rest.finished);
  ASSERT_EQ(records.all.size(), 2U);
  EXPECT_EQ(records.all[0].step, 4);
  EXPECT_EQ(rest.position.updates, 5);
}

// Peak 1e-3 after a warm-up of 10: the course counts optimizer steps, not micro-batches.
TEST(Trainer, TheRateIsThatOfTheUpdateForAnyAccumulation) {
  const LearningRateSchedule schedule({.name = "cosine", .total_steps = 14, .warmup_steps = 10});
  std::vector<std::vector<double>> columns;
  for (const size_t accumulation : {1U, 4U}) {
    Trainer::Settings settings;
    settings.learning_rate = [&](int64_t updates) { return 1e-3 * schedule.factor(updates); };
    TrainerRun run(
        std::vector<StepBatch>(14, StepBatch(accumulation, token_losses({1}))),
        std::move(settings));
    columns.push_back(run.train().rates());
  }
  EXPECT_EQ(columns[0], columns[1]);
  EXPECT_EQ(columns[0][0], 0);
  EXPECT_DOUBLE_EQ(columns[0][5], 5e-4); // after five updates
  EXPECT_DOUBLE_EQ(columns[0][10], 1e-3);
  EXPECT_DOUBLE_EQ(columns[0][12], 5e-4); // half of the cosine's four steps
}

} // namespace
} // namespace palimpsest
