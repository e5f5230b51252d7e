// Evaluations between training steps, through the executor.

#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/engine/executor.h>
#include <palimpsest/core/models/mlp_chain.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/core/optim/sgd.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/memory/profile/profile.h>
#include <palimpsest/memory/recompute/policies.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>

#include <ATen/ops/full.h>

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

// One weight w = 1 on x = 1 with the target 1/2. An evaluation leaves nothing behind that the next
// training step would take for its own: the gradient is 2 (w - 1/2) = 1, and after SGD at 1/2 the
// weight is 1/2, which the next evaluation sees: its loss is 0.
TEST(Evaluation, BeforeAndAfterAStepSeesTheWeightsOfItsTime) {
  install_cpu_allocator();
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const char* policy : {"none", "full"}) {
      MemoryContext memory("rank 0");
      const ScopedContext here(memory);
      Chain chain = build_mlp_chain({.widths = {1, 1}, .bias = false, .compute = compute});
      ShardedParamStore store(chain.units, {}, {{{.begin = 0, .end = 1}}}, {}, memory);
      store.shard(0).values().fill_(1);
      store.refresh(0);
      const StepBatch batches = {
          {.inputs = at::full({1, 1}, 1.0F),
           .labels = at::full({1, 1}, 0.5F),
           .target_count = 1,
           .token_count = 1}};
      const ModelCost cost = profile(chain, batches.front(), memory, {});
      const Sgd sgd(0);
      const FoldedNorm norm(2);
      Executor executor(chain, {.params = store, .optimizer = sgd, .norm = norm, .memory = memory});
      const auto run = [&](bool training) {
        JobDescription description;
        description.model = cost;
        description.stages = {{0, static_cast<int>(cost.blocks.size())}};
        description.training = training;
        const Job job(std::move(description));
        PlanOptions options;
        options.segments = find_policy(policy).decide(cost, {});
        const Plans plans = compose(job, find_schedule("1f1b"), options);
        return executor.run(plans.front(), job, {.batches = batches, .learning_rate = 0.5});
      };
      const std::string what = std::string(policy) + " " + c10::toString(compute);
      EXPECT_EQ(run(false).loss_sum, 0.25) << what;
      const StepOutcome step = run(true);
      EXPECT_EQ(step.loss_sum, 0.25) << what;
      EXPECT_EQ(step.grad_norm, 1) << what;
      EXPECT_EQ(store.shard(0).values().item<float>(), 0.5F) << what;
      EXPECT_EQ(run(false).loss_sum, 0) << what;
      EXPECT_EQ(memory.usage(Category::kGradients).live, 0) << what;
    }
  }
}

} // namespace
} // namespace palimpsest
