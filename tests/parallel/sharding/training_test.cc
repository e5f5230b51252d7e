// Training steps by the executor on one to four ranks of every layout, against one process.

#include <palimpsest/core/engine/executor.h>
#include <palimpsest/core/models/mlp_chain.h>
#include <palimpsest/core/optim/adamw.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/memory/profile/profile.h>
#include <palimpsest/memory/recompute/policies.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>
#include <palimpsest/parallel/sharding/step_agreement.h>
#include <palimpsest/tests/support/ranks/ranks.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <random>

namespace palimpsest::testing {
namespace {

constexpr int kMicroBatches = 12; // of all ranks together
constexpr int kSteps = 3;

struct Layout {
  Mesh mesh{};
  int zero = 0;
  bool reproducible = true;
  std::string policy = "none";
  at::ScalarType compute = at::kFloat;
  int64_t window = 0;
  StatePrecision precision = {};
};

std::string to_text(const Layout& layout) {
  return fmt::format(
      "replicate={} shard={} zero={} reproducible={} policy={} compute={} window={} moments={}",
      layout.mesh.replicate,
      layout.mesh.shard,
      layout.zero,
      layout.reproducible,
      layout.policy,
      c10::toString(layout.compute),
      layout.window,
      c10::toString(layout.precision.moments));
}

at::Tensor noise(std::initializer_list<int64_t> shape, unsigned seed) {
  std::mt19937 draw(seed);
  std::normal_distribution<float> numbers;
  at::Tensor result = at::empty(shape, at::kFloat);
  std::generate_n(result.mutable_data_ptr<float>(), result.numel(), [&] { return numbers(draw); });
  return result;
}

/// Global micro-batch g of a step.
MicroBatch micro_batch(int step, int g) {
  const auto seed = static_cast<unsigned>(100 * step + g);
  return {
      .inputs = noise({5, 8}, seed),
      .labels = noise({5, 4}, seed + 50),
      .target_count = 20,
      .token_count = 5};
}

/// What a run ends with; the same on all its ranks.
struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  at::Tensor parameters; // all units, one after the other
  bool operator==(const Outcome& other) const {
    return losses == other.losses && norms == other.norms && parameters.equal(other.parameters);
  }
};

class Training {
 public:
  Training(Communicator& world, MemoryContext& memory, const Layout& layout)
      : layout_(layout), memory_(memory), groups_(split_world(world, layout.mesh)),
        chain_(build_mlp_chain({.widths = {8, 100, 300, 4}, .compute = layout.compute})),
        store_(
            chain_.units,
            {.placement = {.zero = layout.zero},
             .reproducible = layout.reproducible,
             .moment_count = 2,
             .precision = layout.precision},
            decay(chain_),
            groups_,
            memory),
        job_(describe()), plans_(make_plans()) {
    initialise_mlp_chain(chain_, 7, [this](int unit) {
      return UnitValues{store_.shard(unit).values(), store_.range(unit).begin};
    });
    for (size_t unit = 0; unit < chain_.units.size(); ++unit) {
      store_.refresh(static_cast<int>(unit));
    }
  }

  Outcome run() {
    std::vector<UnitLayout> layouts;
    for (const int unit : job_.trained_units(0)) {
      layouts.push_back(store_.layout(unit));
    }
    StepAgreement agreement(layouts, groups_, memory_);
    const AdamW adamw(0.9, 0.999, 1e-8);
    const FoldedNorm norm(2);
    Executor executor(
        chain_,
        {.params = store_,
         .optimizer = adamw,
         .norm = norm,
         .memory = memory_,
         .agreer = &agreement});
    Outcome outcome;
    for (int step = 0; step < kSteps; ++step) {
      StepBatch batches;
      for (int own = 0; own < job_.micro_batches(); ++own) {
        batches.push_back(micro_batch(step, own * layout_.mesh.data() + groups_.data_rank()));
      }
      memory_.reset_peaks();
      const StepOutcome result = executor.run(
          plans_.front(),
          job_,
          {.batches = batches,
           .loss_scale = 1.0 / (20 * kMicroBatches),
           .learning_rate = 0.01,
           .updates = step + 1,
           .clip = [](double found) { return clip_factor(found, 0.5); }});
      outcome.losses.push_back(result.loss_sum);
      outcome.norms.push_back(result.grad_norm);
      expect_planned_bytes();
    }
    outcome.parameters = whole_parameters();
    return outcome;
  }

 private:
  static std::vector<std::vector<GroupRange>> decay(const Chain& chain) {
    std::vector<std::vector<GroupRange>> groups;
    for (const auto& unit : chain.units) {
      groups.push_back({{.begin = 0, .end = unit->numel(), .weight_decay = 0.1}});
    }
    return groups;
  }

  Job describe() {
    JobDescription description;
    description.model = profile(
        chain_,
        micro_batch(0, 0),
        memory_,
        {.moment_count = 2, .precision = layout_.precision, .repeats = 1});
    description.stages = {{0, static_cast<int>(description.model.blocks.size())}};
    description.micro_batches = kMicroBatches / layout_.mesh.data();
    description.mesh = layout_.mesh;
    description.placement = {.zero = layout_.zero};
    description.reproducible = layout_.reproducible;
    return Job(std::move(description));
  }

  Plans make_plans() {
    PlanOptions options{.window = layout_.window};
    options.segments = find_policy(layout_.policy).decide(job_.model(), {});
    Plans plans = compose(job_, find_schedule("1f1b"), options);
    report_ = simulate(plans, job_);
    return plans;
  }

  /// What is gathered goes when the plan says, and whole gradients too.
  void expect_planned_bytes() const {
    using enum PlanCategory;
    const auto& planned = report_.ranks.front().category[TierId::kDevice];
    EXPECT_EQ(memory_.usage(Category::kParameters).peak, planned[kParam] + planned[kParamShard]);
    EXPECT_LE(memory_.usage(Category::kGradients).peak, planned[kGradBuffer] + planned[kGradShard]);
    EXPECT_LE(memory_.usage(Category::kOptimizer).peak, planned[kOptimizerState]);
    EXPECT_EQ(memory_.usage(Category::kGradients).live, 0);
  }

  at::Tensor whole_parameters() {
    std::vector<at::Tensor> all;
    for (int unit = 0; unit < static_cast<int>(chain_.units.size()); ++unit) {
      const ParamUnit& own = *chain_.units[static_cast<size_t>(unit)];
      if (layout_.zero == 3) {
        EXPECT_FALSE(own.data().defined()); // nothing gathered outlives its use
        store_.gather(unit).wait();
      }
      all.push_back(own.data().narrow(0, 0, own.numel()).clone());
    }
    return at::cat(all);
  }

  Layout layout_;
  MemoryContext& memory_;
  MeshGroups groups_;
  Chain chain_;
  ShardedParamStore store_;
  Job job_;
  PlanReport report_;
  Plans plans_;
};

Outcome train(const Layout& layout) {
  std::mutex mutex;
  std::vector<Outcome> outcomes;
  on_ranks(layout.mesh.world(), [&](Communicator& world, MemoryContext& memory) {
    Outcome mine = Training(world, memory, layout).run();
    const std::scoped_lock lock(mutex);
    outcomes.push_back(std::move(mine));
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome == outcomes.front()) << "ranks disagree";
  }
  return outcomes.front();
}

std::vector<Layout> layouts(
    bool reproducible,
    at::ScalarType compute,
    const StatePrecision& precision = {}) {
  std::vector<Layout> found;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int shard = 1; shard <= ranks; ++shard) {
      for (int zero = shard == 1 ? 0 : 1; ranks % shard == 0 && zero <= 3; ++zero) {
        const Mesh mesh{.replicate = ranks / shard, .shard = shard};
        found.push_back({mesh, zero, reproducible, zero % 2 == 0 ? "none" : "full", compute});
        found.push_back({mesh, zero, reproducible, "full", compute, zero == 3 ? 1 << 30 : 0});
      }
    }
  }
  for (Layout& layout : found) {
    layout.precision = precision;
  }
  return found;
}

TEST(Training, ReproducibleRunsHaveTheSameBitsInEveryLayout) {
  const StatePrecision narrow{
      .master = false, .gradients = at::kBFloat16, .moments = at::kBFloat16};
  for (const auto& [compute, precision] :
       {std::pair(at::kFloat, StatePrecision()),
        std::pair(at::kBFloat16, StatePrecision()),
        std::pair(at::kBFloat16, narrow),
        std::pair(at::kHalf, StatePrecision())}) {
    const Outcome plain = train({.compute = compute, .precision = precision});
    EXPECT_GT(plain.norms.front(), 0.5); // so that clipping counts
    for (const Layout& layout : layouts(true, compute, precision)) {
      SCOPED_TRACE(to_text(layout));
      const Outcome found = train(layout);
      EXPECT_EQ(found.losses, plain.losses);
      EXPECT_EQ(found.norms, plain.norms);
      EXPECT_TRUE(found.parameters.equal(plain.parameters));
    }
  }
}

TEST(Training, OtherRunsHaveItsNumbers) {
  const Outcome plain = train({});
  int other_bits = 0;
  for (const Layout& layout : layouts(false, at::kFloat)) {
    SCOPED_TRACE(to_text(layout));
    const Outcome found = train(layout);
    for (size_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(found.losses[step], plain.losses[step], 1e-5 * plain.losses[step]);
      EXPECT_NEAR(found.norms[step], plain.norms[step], 1e-5 * plain.norms[step]);
    }
    EXPECT_TRUE(at::allclose(found.parameters, plain.parameters, 1e-3, 1e-4));
    other_bits += found.parameters.equal(plain.parameters) ? 0 : 1;
  }
  EXPECT_GT(other_bits, 10); // so equal bits above are not the rule anyway
}

} // namespace
} // namespace palimpsest::testing
