// Whole steps of every ZeRO stage on one to four ranks, against sums and updates computed on the
// whole.

#include <palimpsest/core/optim/adamw.h>
#include <palimpsest/core/optim/gradient_norm.h>
#include <palimpsest/parallel/comm/counting.h>
#include <palimpsest/parallel/sharding/step_agreement.h>
#include <palimpsest/tests/parallel/sharding/store_steps.h>
#include <palimpsest/tests/support/ranks/ranks.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

namespace palimpsest::testing {
namespace {

/// Numbers in [-1, 1) that no two (unit, g) share.
at::Tensor noise(int64_t numel, int unit, int g) {
  std::mt19937 draw(static_cast<unsigned>(1000 * unit + g));
  std::uniform_real_distribution<float> numbers(-1, 1);
  at::Tensor result = at::empty({numel}, at::kFloat);
  std::generate_n(result.mutable_data_ptr<float>(), numel, [&] { return numbers(draw); });
  return result;
}

std::vector<StoreChoice> layouts(int ranks) {
  std::vector<StoreChoice> found;
  for (int shard = 1; shard <= ranks; ++shard) {
    for (int zero = 0; ranks % shard == 0 && zero <= 3; ++zero) {
      if (zero > 0 || shard == 1) {
        for (const bool reproducible : {false, true}) {
          for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
            found.push_back(
                {.mesh = {.replicate = ranks / shard, .shard = shard},
                 .zero = zero,
                 .reproducible = reproducible,
                 .dtype = dtype,
                 .micro_batches = 1 + (zero + shard) % 3});
          }
        }
      }
    }
  }
  return found;
}

/// What a step makes of whole parameters, computed without shards, ranks or plans.
class Whole {
 public:
  Whole(const StoreSteps& steps, int micro_batches_of_all, bool narrow)
      : total_(micro_batches_of_all), narrow_(narrow) {
    for (int unit = 0; unit < steps.count(); ++unit) {
      values_.push_back(initial(unit, steps.unit(unit).numel(), narrow));
    }
  }

  static at::Tensor initial(int unit, int64_t numel, bool narrow) {
    const at::Tensor values = noise(numel, unit, 999);
    // a frozen bf16 unit has no master: begin with what bf16 holds
    return narrow ? values.to(at::kBFloat16).to(at::kFloat) : values;
  }

  /// In the order of global micro-batches.
  at::Tensor gradient(int unit, int step) const {
    at::Tensor sum = at::zeros_like(values_[static_cast<size_t>(unit)]);
    for (int g = 0; g < total_; ++g) {
      sum += noise(sum.numel(), unit, 100 * step + g);
    }
    return sum;
  }
  void update(int unit, int step) {
    values_[static_cast<size_t>(unit)].sub_(gradient(unit, step), 0.5); // exact product
  }
  at::Tensor parameters(int unit) const {
    const at::Tensor& values = values_[static_cast<size_t>(unit)];
    return narrow_ ? values.to(at::kBFloat16) : values;
  }

 private:
  int total_;
  bool narrow_;
  std::vector<at::Tensor> values_;
};

void expect_near(const at::Tensor& found, const at::Tensor& wanted, bool bitwise) {
  ASSERT_EQ(found.numel(), wanted.numel());
  if (bitwise) {
    EXPECT_TRUE(found.equal(wanted));
  } else {
    const double tolerance = found.scalar_type() == at::kBFloat16 ? 1e-2 : 1e-6;
    EXPECT_TRUE(at::allclose(found, wanted, tolerance, tolerance));
  }
}

/// Tracked bytes against the plan's. Rank 0 holds most.
void expect_planned_bytes(const StoreSteps& steps, const MemoryContext& memory, bool first) {
  const auto peak = [&](Category category) { return memory.usage(category).peak; };
  const auto& planned = steps.report().category[TierId::kDevice];
  using enum PlanCategory;
  EXPECT_EQ(peak(Category::kParameters), planned[kParam] + planned[kParamShard]);
  EXPECT_LE(peak(Category::kOptimizer), planned[kOptimizerState]);
  EXPECT_TRUE(!first || peak(Category::kOptimizer) == planned[kOptimizerState]);
  EXPECT_LE(peak(Category::kGradients), planned[kGradBuffer] + planned[kGradShard]);
  EXPECT_GE(peak(Category::kGradients), std::max(planned[kGradBuffer], planned[kGradShard]));
  EXPECT_EQ(memory.usage(Category::kGradients).live, 0);
}

void expect_zero_padding(const StoreSteps& steps) {
  for (int unit = 0; unit < steps.count(); ++unit) {
    const at::Tensor& data = steps.unit(unit).data();
    if (data.defined()) {
      const int64_t numel = steps.unit(unit).numel();
      EXPECT_EQ(data.narrow(0, numel, data.numel() - numel).count_nonzero().item<int64_t>(), 0);
    }
  }
}

void check_steps(Communicator& world, MemoryContext& memory, const StoreChoice& choice) {
  SCOPED_TRACE(to_text(choice));
  const bool narrow = choice.dtype != at::kFloat;
  const std::vector<int64_t> sizes{67 * 24, 10'000, 1, 0, 15, 57};
  StoreSteps steps(&world, memory, choice, [&](int unit) {
    return Whole::initial(unit, sizes[static_cast<size_t>(unit)], narrow);
  });
  Whole whole(steps, choice.micro_batches * world.size(), narrow);
  for (int step = 0; step < 2; ++step) {
    memory.reset_peaks();
    steps.on_compute = [&](int unit) {
      const at::Tensor& data = steps.unit(unit).data();
      expect_near(
          data.narrow(0, 0, steps.unit(unit).numel()), whole.parameters(unit), choice.reproducible);
      EXPECT_EQ(data.numel(), steps.store().layout(unit).whole());
      expect_zero_padding(steps);
    };
    steps.on_agree = [&] {
      for (const int unit : steps.trained()) {
        const ElementRange own = steps.store().range(unit);
        const at::Tensor wanted = whole.gradient(unit, step).narrow(0, own.begin, own.size());
        expect_near(steps.store().shard(unit).gradient, wanted, choice.reproducible);
      }
    };
    steps.on_update = [&](int unit) {
      ParamShard& shard = steps.store().shard(unit);
      shard.values().sub_(shard.gradient, 0.5);
      if (shard.master.defined()) {
        shard.parameters.copy_(shard.master);
      }
      whole.update(unit, step);
    };
    steps.run(
        [&](int unit, int g) { return noise(steps.unit(unit).numel(), unit, 100 * step + g); });
    expect_planned_bytes(steps, memory, world.rank() == 0);
  }
}

TEST(ShardedSteps, EveryStageAndMeshIsTheStepOfTheWhole) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const StoreChoice& choice : layouts(ranks)) {
      on_ranks(ranks, [&](Communicator& world, MemoryContext& memory) {
        check_steps(world, memory, choice);
        EXPECT_EQ(memory.total().live, 0);
      });
    }
  }
}

// Two ranks, four micro-batches of gradients 1, 2, 3, 4 each: 20 on both, whatever the stage.
TEST(ShardedSteps, AccumulationCountsEveryMicroBatchOnce) {
  for (int zero = 0; zero <= 3; ++zero) {
    on_ranks(2, [&](Communicator& world, MemoryContext& memory) {
      const Mesh mesh = resolve_mesh(2, {.zero = zero});
      StoreSteps steps(
          &world,
          memory,
          {.mesh = mesh, .zero = zero, .micro_batches = 4, .shapes = {{5}, {9000}}},
          [](int unit) {
            return at::zeros({std::array{5, 9000, 57}[static_cast<size_t>(unit)]});
          });
      const FoldedNorm norm(2);
      std::vector<UnitLayout> layouts;
      for (const int unit : steps.trained()) {
        layouts.push_back(steps.store().layout(unit));
      }
      StepAgreement agreement(layouts, steps.groups(), memory);
      double found = 0;
      steps.on_agree = [&] {
        Agreement mine{.losses = std::vector<double>(4)};
        for (const int unit : steps.trained()) {
          const at::Tensor gradient = steps.store().shard(unit).gradient;
          EXPECT_TRUE(gradient.equal(at::full_like(gradient, 20)));
          const auto parts = norm.measure(gradient);
          mine.norm_parts.insert(mine.norm_parts.end(), parts.begin(), parts.end());
        }
        found = norm.fold(agreement.agree(mine).norm_parts);
      };
      steps.run([&](int unit, int g) {
        return at::full({steps.unit(unit).numel()}, 1.0F + static_cast<float>(g / 2));
      });
      EXPECT_DOUBLE_EQ(found, 20 * std::sqrt(9005.0)) << zero;
    });
  }
}

// Ranks with different data: gradients 1 and 3 are summed before the update, so the parameters of
// both stay the same bits.
TEST(ShardedSteps, RanksNeverTrainApart) {
  const AdamW adamw(0.9, 0.999, 1e-8);
  for (int zero = 0; zero <= 3; ++zero) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int micro_batches : {1, 3}) {
        std::map<int, std::vector<at::Tensor>> ends;
        std::mutex mutex;
        on_ranks(2, [&](Communicator& world, MemoryContext& memory) {
          const StoreChoice choice{
              .mesh = resolve_mesh(2, {.zero = zero}),
              .zero = zero,
              .dtype = dtype,
              .micro_batches = micro_batches,
              .shapes = {{7}, {5000}}};
          StoreSteps steps(&world, memory, choice, [](int unit) {
            return at::full({std::array{7, 5000, 57}[static_cast<size_t>(unit)]}, 1.0F);
          });
          for (int step = 1; step <= 3; ++step) {
            steps.on_update = [&](int unit) {
              ParamShard& shard = steps.store().shard(unit);
              EXPECT_TRUE(shard.gradient.equal(at::full_like(shard.gradient, 4 * micro_batches)));
              adamw.step(shard, {.learning_rate = 0.1, .step = step});
            };
            steps.run([&](int unit, int g) {
              return at::full({steps.unit(unit).numel()}, g % 2 == 0 ? 1.0F : 3.0F);
            });
          }
          std::vector<at::Tensor> whole;
          for (int unit = 0; unit < steps.count(); ++unit) {
            if (zero == 3) {
              steps.store().gather(unit).wait();
            }
            whole.push_back(steps.unit(unit).data().clone());
          }
          const std::scoped_lock lock(mutex);
          ends[world.rank()] = std::move(whole);
        });
        for (size_t unit = 0; unit < ends[0].size(); ++unit) {
          EXPECT_TRUE(ends[0][unit].equal(ends[1][unit])) << zero << ' ' << micro_batches;
        }
        EXPECT_LT(ends[0][1][0].item<float>(), 1);
      }
    }
  }
}

// Sizes that no number of ranks divides come back unshifted, and the padding stays zero under
// decay.
TEST(ShardedSteps, GatheringInvertsShardingAndPaddingStaysZero) {
  const AdamW adamw(0.9, 0.999, 1e-8);
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (int zero = 1; zero <= 3; ++zero) {
      on_ranks(ranks, [&](Communicator& world, MemoryContext& memory) {
        const std::vector<int64_t> sizes{1, 7, 57, 67 * 24, 15, 3, 5, 4096 * 3 + 1, 57};
        const StoreChoice choice{
            .mesh = {.shard = ranks},
            .zero = zero,
            .shapes = {{1}, {7}, {57}, {67, 24}, {5, 3}, {3}, {5}, {4096 * 3 + 1}}};
        const auto numbers = [&](int unit) {
          return at::arange(sizes[static_cast<size_t>(unit)], at::kFloat);
        };
        StoreSteps steps(&world, memory, choice, numbers);
        bool fresh = true;
        steps.on_compute = [&](int unit) {
          const at::Tensor data = steps.unit(unit).data();
          if (fresh) {
            EXPECT_TRUE(data.narrow(0, 0, sizes[static_cast<size_t>(unit)]).equal(numbers(unit)));
          }
          expect_zero_padding(steps);
        };
        int step = 1;
        steps.on_update = [&](int unit) {
          adamw.step(steps.store().shard(unit), {.learning_rate = 0.1, .step = step});
        };
        for (; step <= 10; ++step) {
          steps.run([&](int unit, int g) { return noise(steps.unit(unit).numel(), unit, g); });
          fresh = false;
        }
        int64_t elements = 0;
        for (const int unit : steps.trained()) {
          elements += steps.store().shard(unit).values().numel();
        }
        const at::Tensor total = at::full({1}, elements, at::kLong);
        world.all_reduce(total, ReduceOp::kSum).wait();
        EXPECT_EQ(total.item<int64_t>(), 1 + 7 + 57 + 67 * 24 + 15 + 3 + 5 + 4096 * 3 + 1);
      });
    }
  }
}

} // namespace
} // namespace palimpsest::testing
