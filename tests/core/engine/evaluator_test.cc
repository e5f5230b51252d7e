#include <palimpsest/core/engine/evaluator.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/core/optim/sgd.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/memory/profile/profile.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>
#include <palimpsest/tests/core/engine/scalar_chain.h>
#include <palimpsest/tests/support/ranks/ranks.h>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

using testing::Counts;
using testing::scalar_chain;
using testing::token_losses;

/// One micro-batch a step. `before_load` may throw.
class Samples final : public BatchSource {
 public:
  explicit Samples(
      std::vector<MicroBatch> steps,
      std::function<void(int64_t step)> before_load = [](int64_t) {})
      : steps_(std::move(steps)), before_load_(std::move(before_load)) {}
  int64_t step_count() const override {
    return static_cast<int64_t>(steps_.size());
  }
  StepBatch load(int64_t step) override {
    before_load_(step);
    return {steps_.at(static_cast<size_t>(step))};
  }

 private:
  std::vector<MicroBatch> steps_;
  std::function<void(int64_t step)> before_load_;
};

std::shared_ptr<const PlannedStep> plan(Chain& chain, MemoryContext& memory, bool training) {
  JobDescription description;
  description.model = profile(chain, token_losses({1, 1, 1}), memory, {});
  description.stages = {{0, static_cast<int>(description.model.blocks.size())}};
  description.training = training;
  Job job(std::move(description));
  Plans plans = compose(job, find_schedule("1f1b"), {});
  return std::make_shared<PlannedStep>(std::move(job), std::move(plans.front()));
}

/// y = w x with w = 2; the loss of a token is its y.
struct Evaluated {
  HeldOutLoss loss;
  Counts counts;
  int64_t gradients = 0; // bytes, at the peak
};

Evaluated evaluate(
    Samples samples,
    MemoryContext& memory,
    Communicator* ranks,
    const std::function<bool()>& stop_requested = {}) {
  Evaluated evaluated;
  Chain chain = scalar_chain(1, {0}, evaluated.counts);
  ShardedParamStore store(chain.units, {}, {{{.begin = 0, .end = 1}}}, {}, memory);
  store.shard(0).parameters.fill_(2);
  const Sgd sgd(0);
  const FoldedNorm norm(2);
  Executor executor(chain, {.params = store, .optimizer = sgd, .norm = norm, .memory = memory});
  Evaluator evaluator(executor, plan(chain, memory, false), samples, memory, ranks);
  evaluated.counts = {};
  memory.reset_peaks();
  evaluated.loss = evaluator.evaluate(stop_requested);
  evaluated.gradients = memory.usage(Category::kGradients).peak;
  EXPECT_EQ(store.shard(0).parameters.item<float>(), 2);
  return evaluated;
}

// 2 (1 + 2 + 4) over three targets; a token that is none counts nothing.
TEST(Evaluator, SumsTokenLossesOverAllStepsAndDividesByTheirTargets) {
  install_cpu_allocator();
  MemoryContext memory("rank 0");
  const ScopedContext here(memory);
  const Evaluated found =
      evaluate(Samples({token_losses({1, 2, -1}), token_losses({4})}), memory, nullptr);
  EXPECT_EQ(found.loss.sum, 14);
  EXPECT_EQ(found.loss.targets, 3);
  EXPECT_DOUBLE_EQ(found.loss.mean(), 14.0 / 3);
  EXPECT_FALSE(found.loss.shortage);
  EXPECT_EQ(found.counts.forwards, 2);
  EXPECT_EQ(found.counts.backwards, 0);
  EXPECT_EQ(found.counts.commits, 0);
  EXPECT_EQ(found.counts.live_tapes, 0);
  EXPECT_EQ(found.gradients, 0);
}

// A long sequence of losses 1 and a short one of losses 3 (times w): each target counts the same,
// 13/9 of w, not each sequence; in one row, in two, in two steps and on two ranks.
TEST(Evaluator, LongSequencesCountForMoreThanShortOnes) {
  install_cpu_allocator();
  MemoryContext memory("rank 0");
  const ScopedContext here(memory);
  const MicroBatch seven = token_losses({1, 1, 1, 1, 1, 1, 1});
  const MicroBatch two = token_losses({3, 3});
  const MicroBatch padded = token_losses({3, 3, -1, -1, -1, -1, -1});
  const MicroBatch packed = token_losses({1, 1, 1, 1, 1, 1, 1, 3, 3});
  for (const std::vector<MicroBatch>& steps :
       {std::vector{seven, two}, {seven, padded}, {packed}}) {
    EXPECT_DOUBLE_EQ(evaluate(Samples(steps), memory, nullptr).loss.mean(), 2 * 13.0 / 9);
  }
  testing::on_ranks(2, [&](Communicator& world, MemoryContext& own) {
    EXPECT_DOUBLE_EQ(
        evaluate(Samples({world.rank() == 0 ? seven : two}), own, &world).loss.mean(),
        2 * 13.0 / 9);
  });
}

TEST(Evaluator, HasNoMeanWithoutATarget) {
  install_cpu_allocator();
  MemoryContext memory("rank 0");
  const ScopedContext here(memory);
  EXPECT_TRUE(std::isnan(evaluate(Samples({token_losses({-1, -1})}), memory, nullptr).loss.mean()));
}

// In the second step only the first rank has a target.
TEST(Evaluator, AllRanksHaveTheSumOfAllOfThem) {
  std::mutex mutex;
  std::vector<HeldOutLoss> found;
  testing::on_ranks(3, [&](Communicator& world, MemoryContext& memory) {
    const float own = 1.0F + static_cast<float>(world.rank());
    const std::vector<MicroBatch> steps = {
        token_losses({own, own}), token_losses({world.rank() == 0 ? 8.0F : -1.0F})};
    const HeldOutLoss loss = evaluate(Samples(steps), memory, &world).loss;
    const std::lock_guard lock(mutex);
    found.push_back(loss);
  });
  ASSERT_EQ(found.size(), 3U);
  for (const HeldOutLoss& loss : found) {
    EXPECT_EQ(loss.sum, 2 * (2 * (1 + 2 + 3) + 8));
    EXPECT_EQ(loss.targets, 7);
  }
}

using End = HeldOutLoss::End;

// Before each of three micro-batches it asks; after the last there is nothing to drop.
TEST(Evaluator, StopsBetweenTwoMicroBatchesWhereOneRankIsAskedTo) {
  for (int asked = 0; asked <= 3; ++asked) {
    testing::on_ranks(3, [&](Communicator& world, MemoryContext& memory) {
      int questions = 0;
      const Evaluated found = evaluate(
          Samples({token_losses({1}), token_losses({2}), token_losses({4})}), memory, &world, [&] {
            return questions++ == asked && world.rank() == 1;
          });
      EXPECT_EQ(found.loss.end, asked < 3 ? End::kStopped : End::kComplete);
      EXPECT_EQ(found.counts.forwards, asked);
      EXPECT_EQ(found.loss.targets, asked < 3 ? 0 : 9);
      EXPECT_FALSE(found.loss.shortage);
    });
  }
}

// The allocation that fails may be any of the first micro-batch's, of the rank that has more.
TEST(Evaluator, EndsOnAllRanksWhereOneRunsOutOfMemory) {
  for (const int64_t k : {1, 2}) {
    testing::on_ranks(2, [&](Communicator& world, MemoryContext& memory) {
      const Evaluated found = evaluate(
          Samples({token_losses({1}), token_losses({2})}),
          memory,
          &world,
          [&, asked = 0]() mutable {
            if (world.rank() == 1 && asked++ == 0) {
              memory.set_allocation_hook(fail_at_allocation(k));
            }
            return false;
          });
      memory.set_allocation_hook({});
      EXPECT_EQ(found.loss.end, End::kExhausted);
      EXPECT_EQ(found.loss.shortage.has_value(), world.rank() == 1);
      EXPECT_LE(found.counts.forwards, 1);
    });
  }
}

// As an allocator, or the system, refuses what a rank loads for the first step or a later one.
TEST(Evaluator, EndsOnAllRanksWhereOneCannotLoadItsSamples) {
  for (const int64_t failing : {0, 1, 2}) {
    testing::on_ranks(2, [&](Communicator& world, MemoryContext& memory) {
      const auto before_load = [&](int64_t step) {
        if (world.rank() == 1 && step == failing) {
          memory.set_allocation_hook(fail_at_allocation(1));
          at::empty({8}, at::kByte);
        }
      };
      const Evaluated found = evaluate(
          Samples({token_losses({1}), token_losses({2}), token_losses({4})}, before_load),
          memory,
          &world);
      memory.set_allocation_hook({});
      EXPECT_EQ(found.loss.end, End::kExhausted);
      EXPECT_EQ(found.counts.forwards, failing);
      EXPECT_EQ(found.loss.shortage.has_value(), world.rank() == 1);
      if (found.loss.shortage) {
        EXPECT_EQ(found.loss.shortage->doing, "while loading the samples of an evaluation");
        EXPECT_EQ(found.loss.shortage->refused.bytes, 8);
      }
    });
  }
}

TEST(Evaluator, RefusesAPlanThatTrains) {
  install_cpu_allocator();
  MemoryContext memory("rank 0");
  const ScopedContext here(memory);
  Counts counts;
  Chain chain = scalar_chain(1, {0}, counts);
  ShardedParamStore store(chain.units, {}, {{{.begin = 0, .end = 1}}}, {}, memory);
  Samples samples({});
  const Sgd sgd(0);
  const FoldedNorm norm(2);
  Executor executor(chain, {.params = store, .optimizer = sgd, .norm = norm, .memory = memory});
  EXPECT_THROW(
      Evaluator(executor, plan(chain, memory, true), samples, memory, nullptr), InternalError);
}

} // namespace
} // namespace palimpsest
