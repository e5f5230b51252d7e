#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/optimizer_math.h>
#include <palimpsest/core/kernels/philox.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <bit>
#include <cmath>

namespace palimpsest::kernels {
namespace {

using OptimizerMathTest = KernelsTest;
INSTANTIATE_TEST_SUITE_P(
    GradientDtypes,
    OptimizerMathTest,
    testing::Values(at::kFloat, at::kBFloat16),
    dtype_name);

constexpr AdamWStep kAdamW{
    .learning_rate = 3e-3,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .eps = 1e-8,
    .weight_decay = 0.1,
    .step = 1,
    .gradient_scale = 0.5};

// torch.optim.AdamW's single-tensor formula, one element in double.
void adamw_element(double& p, double g, double& m, double& v, const AdamWStep& s) {
  g *= s.gradient_scale;
  p *= 1 - s.learning_rate * s.weight_decay;
  m = s.beta1 * m + (1 - s.beta1) * g;
  v = s.beta2 * v + (1 - s.beta2) * g * g;
  const double correction1 = 1 - std::pow(s.beta1, s.step);
  const double correction2 = 1 - std::pow(s.beta2, s.step);
  p -= s.learning_rate / correction1 * m / (std::sqrt(v) / std::sqrt(correction2) + s.eps);
}

TEST_P(OptimizerMathTest, AdamWFollowsTheFormulaInDouble) {
  for (const int64_t elements : {0, 1, 7, 67, 1408}) {
    const at::Tensor parameters = at::randn({elements}, at::kFloat);
    const at::Tensor m = at::zeros({elements}, at::kFloat);
    const at::Tensor v = at::zeros({elements}, at::kFloat);
    const at::Tensor copy = at::zeros({elements}, at::kBFloat16);
    at::Tensor p_wide = parameters.to(at::kDouble);
    at::Tensor m_wide = m.to(at::kDouble);
    at::Tensor v_wide = v.to(at::kDouble);
    AdamWStep step = kAdamW;
    for (step.step = 1; step.step <= 5; ++step.step) {
      const at::Tensor g = at::randn({elements}, at::kFloat).to(GetParam());
      adamw_update(parameters, g, m, v, step, copy);
      const at::Tensor g_wide = g.to(at::kDouble);
      for (int64_t i = 0; i < elements; ++i) {
        adamw_element(
            p_wide.data_ptr<double>()[i],
            g_wide.data_ptr<double>()[i],
            m_wide.data_ptr<double>()[i],
            v_wide.data_ptr<double>()[i],
            step);
      }
      EXPECT_LE(difference(parameters, p_wide), 1e-6);
      EXPECT_LE(difference(m, m_wide), 1e-6);
      EXPECT_LE(difference(v, v_wide), 1e-6);
      EXPECT_TRUE(same_bits(copy, parameters.to(at::kBFloat16)));
    }
  }
}

TEST_P(OptimizerMathTest, BitsDoNotDependOnShardsOrThreads) {
  const int64_t elements = 40000;
  const at::Tensor start = at::randn({elements}, at::kFloat);
  const at::Tensor g = at::randn({elements}, at::kFloat).to(GetParam());
  const auto run = [&](const std::vector<int64_t>& cuts) {
    const at::Tensor p = start.clone();
    const at::Tensor m = at::full({elements}, 0.1, at::kFloat);
    const at::Tensor v = at::full({elements}, 0.2, at::kFloat);
    int64_t first = 0;
    for (const int64_t last : cuts) {
      const auto shard = [&](const at::Tensor& t) { return t.narrow(0, first, last - first); };
      adamw_update(shard(p), shard(g), shard(m), shard(v), kAdamW);
      sgd_momentum_update(shard(p), shard(g), shard(m), {.momentum = 0.9, .weight_decay = 0.1});
      first = last;
    }
    return p;
  };
  const at::Tensor whole = run({elements});
  with_thread_counts([&](int) {
    EXPECT_TRUE(same_bits(run({1, 1, 8, 17, 16384, 16391, 39999, elements}), whole));
  });
}

TEST_P(OptimizerMathTest, SgdFollowsTheFormulaInDouble) {
  for (const double momentum : {0.0, 0.9}) {
    const at::Tensor p = at::randn({67}, at::kFloat);
    const at::Tensor buffer = momentum > 0 ? at::full({67}, NAN, at::kFloat) : at::Tensor();
    const at::Tensor copy = at::zeros({67}, at::kBFloat16);
    at::Tensor p_wide = p.to(at::kDouble);
    at::Tensor b_wide;
    for (int step = 0; step < 4; ++step) {
      const at::Tensor g = at::randn({67}, at::kFloat).to(GetParam());
      sgd_momentum_update(
          p,
          g,
          buffer,
          {.learning_rate = 0.1,
           .momentum = momentum,
           .weight_decay = 0.01,
           .first = step == 0,
           .gradient_scale = 0.5},
          copy);
      const at::Tensor d = g.to(at::kDouble) * 0.5 + p_wide * 0.01;
      b_wide = b_wide.defined() ? b_wide * momentum + d : d;
      p_wide = p_wide - b_wide * 0.1;
      EXPECT_LE(difference(p, p_wide), 1e-6);
      EXPECT_TRUE(same_bits(copy, p.to(at::kBFloat16)));
    }
  }
}

// ---- stochastic rounding

constexpr StochasticRounding kRounding{.seed = 42, .unit = 7, .first = 4099};

/// The words of an element's buffers, from the generator itself.
uint32_t word_of(const StochasticRounding& rounding, uint32_t step, uint32_t state, int64_t i) {
  const auto mixed = philox4x32_10(
      {step, 0, rounding.unit, 0xFFFFFFFFU}, {static_cast<uint32_t>(rounding.seed), 0});
  const int64_t element = rounding.first + i;
  const PhiloxCounter counter = {static_cast<uint32_t>(element / 4), state, 0, 0};
  return philox4x32_10(counter, {mixed[0], mixed[1]})[element % 4];
}

/// `value` as bf16, up where the part that is cut off and 16 random bits carry.
float rounded(float value, uint32_t word) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + (word >> 16)) & 0xFFFF0000U);
}

TEST(StochasticRoundingTest, DependsOnSeedUnitElementAndStepAlone) {
  constexpr int64_t kElements = 1031;
  const at::Tensor start = at::randn({kElements}, at::kFloat).to(at::kBFloat16);
  const at::Tensor g = at::randn({kElements}, at::kFloat).to(at::kBFloat16);
  const at::Tensor p = start.clone();
  const at::Tensor momentum = at::zeros({kElements}, at::kBFloat16);
  const at::Tensor old = at::randn({kElements}, at::kFloat).to(at::kBFloat16);
  momentum.copy_(old);
  // products and sums of such numbers are exact in fp32
  const SgdStep step{.learning_rate = 0.0625, .momentum = 0.5, .step = 3, .rounding = kRounding};
  sgd_momentum_update(p, g, momentum, step);
  for (int64_t i = 0; i < kElements; ++i) {
    const auto at = [i](const at::Tensor& t) { return t[i].item<float>(); };
    const float direction = std::fma(at(old), 0.5F, at(g));
    const float updated = std::fma(-0.0625F, direction, at(start));
    ASSERT_EQ(at(p), rounded(updated, word_of(kRounding, 3, 0, i))) << i;
    ASSERT_EQ(at(momentum), rounded(direction, word_of(kRounding, 3, 1, i))) << i;
  }
}

TEST(StochasticRoundingTest, BitsDoNotDependOnShardsOrThreads) {
  constexpr int64_t kElements = 40000;
  const at::Tensor start = at::randn({kElements}, at::kFloat).to(at::kBFloat16);
  const at::Tensor g = at::randn({kElements}, at::kFloat).to(at::kBFloat16);
  const auto run = [&](const std::vector<int64_t>& cuts) {
    std::vector<at::Tensor> states = {start.clone(), at::full({kElements}, 0.1, at::kBFloat16)};
    states.push_back(at::full({kElements}, 0.2, at::kBFloat16));
    int64_t first = 0;
    for (const int64_t last : cuts) {
      const auto shard = [&](const at::Tensor& t) { return t.narrow(0, first, last - first); };
      AdamWStep step = kAdamW;
      step.rounding = {.seed = 1, .unit = 2, .first = first};
      adamw_update(shard(states[0]), shard(g), shard(states[1]), shard(states[2]), step);
      first = last;
    }
    return at::cat(states);
  };
  const at::Tensor whole = run({kElements});
  with_thread_counts([&](int) {
    EXPECT_TRUE(same_bits(run({1, 1, 8, 17, 16384, 16391, 39999, kElements}), whole));
  });
}

// Of numbers v between neighbours one ulp u apart, the mean is v within 5 standard errors of at most
// u / 2.
TEST(StochasticRoundingTest, IsExactInTheMean) {
  constexpr int64_t kElements = 1 << 16;
  for (const double part : {0.01, 0.3, 0.5, 0.99}) {
    for (const double sign : {1.0, -1.0}) {
      const double ulp = 1.0 / 128; // of bf16 in [1, 2)
      const at::Tensor p = at::full({kElements}, sign, at::kBFloat16);
      const at::Tensor g = at::full({kElements}, -sign * part * ulp, at::kFloat);
      sgd_momentum_update(p, g, {}, {.learning_rate = 1});
      const at::Tensor wide = p.to(at::kDouble);
      const double error = wide.mean().item<double>() - sign * (1 + part * ulp);
      EXPECT_LE(std::abs(error), 5 * ulp / 2 / std::sqrt(kElements)) << part << " " << sign;
      EXPECT_GE(wide.abs().min().item<double>(), 1);
      EXPECT_LE(wide.abs().max().item<double>(), 1 + ulp);
    }
  }
}

TEST(StochasticRoundingTest, SmallUpdatesMoveWhereTheNearestWouldNot) {
  constexpr int kSteps = 1000;
  constexpr double kRate = 1e-4; // of 1: a fortieth of bf16's distance below
  const at::Tensor p = at::full({4096}, 1.0, at::kBFloat16);
  const at::Tensor g = at::full({4096}, 1.0, at::kBFloat16);
  for (int step = 1; step <= kSteps; ++step) {
    sgd_momentum_update(p, g, {}, {.learning_rate = kRate, .step = step});
  }
  EXPECT_EQ(static_cast<float>(at::BFloat16(static_cast<float>(1.0 - kRate))), 1.0F);
  EXPECT_NEAR(p.to(at::kDouble).mean().item<double>(), 1 - kSteps * kRate, 1e-3);
}

// v <- 0.999 v + 0.001 g^2. To the nearest bf16 it ends where 0.001 (1 - v) is half an ulp, far
// below 1.
TEST(StochasticRoundingTest, TheSecondMomentOfAConstantGradientConverges) {
  constexpr int kSteps = 6000;
  const at::Tensor p = at::zeros({1024}, at::kFloat);
  const at::Tensor g = at::full({1024}, 1.0, at::kFloat);
  const at::Tensor m = at::zeros({1024}, at::kBFloat16);
  const at::Tensor v = at::zeros({1024}, at::kBFloat16);
  at::BFloat16 nearest = 0;
  for (int step = 1; step <= kSteps; ++step) {
    adamw_update(p, g, m, v, {.beta2 = 0.999, .step = step});
    nearest = 0.999F * static_cast<float>(nearest) + 0.001F;
  }
  EXPECT_NEAR(v.to(at::kDouble).mean().item<double>(), 1 - std::pow(0.999, kSteps), 5e-3);
  EXPECT_NEAR(m.to(at::kDouble).mean().item<double>(), 1, 5e-3);
  EXPECT_LT(static_cast<float>(nearest), 0.5F);
}

TEST(StochasticRoundingTest, KeepsZerosInfinitiesAndNaNs) {
  const at::Tensor p = at::tensor({0.0F, INFINITY, -INFINITY, NAN}).to(at::kBFloat16);
  const at::Tensor zeros = at::zeros({4}, at::kFloat);
  adamw_update(p, zeros, zeros.clone(), zeros.clone(), {});
  const at::Tensor wide = p.to(at::kFloat);
  EXPECT_EQ(wide[0].item<float>(), 0);
  EXPECT_EQ(wide[1].item<float>(), INFINITY);
  EXPECT_EQ(wide[2].item<float>(), -INFINITY);
  EXPECT_TRUE(std::isnan(wide[3].item<float>()));
}

TEST(StochasticRoundingTest, IsRefusedWhereItIsNotDone) {
  const at::Tensor p = at::zeros({4}, at::kBFloat16);
  const at::Tensor wide = at::zeros({4}, at::kDouble);
  EXPECT_THROW(sgd_momentum_update(p, wide, {}, {}), InternalError);
  EXPECT_THROW(
      sgd_momentum_update(p, p, {}, {.rounding = {.first = int64_t{1} << 34}}), InternalError);
}

TEST(OptimizerMathFallbackTest, Fp64AgreesWithTheFormula) {
  const at::Tensor p = at::randn({9}, at::kDouble);
  const at::Tensor g = at::randn({9}, at::kDouble);
  const at::Tensor m = at::randn({9}, at::kDouble);
  const at::Tensor v = at::randn({9}, at::kDouble).abs();
  const at::Tensor expected = p.clone();
  const at::Tensor m_expected = m.clone();
  const at::Tensor v_expected = v.clone();
  for (int64_t i = 0; i < 9; ++i) {
    adamw_element(
        expected.data_ptr<double>()[i],
        g.data_ptr<double>()[i],
        m_expected.data_ptr<double>()[i],
        v_expected.data_ptr<double>()[i],
        kAdamW);
  }
  adamw_update(p, g, m, v, kAdamW);
  EXPECT_LE(difference(p, expected), 1e-14);
  const at::Tensor before = p.clone();
  sgd_momentum_update(p, g, {}, {.learning_rate = 0.1});
  EXPECT_LE(difference(p, before - g * 0.1), 1e-15);
}

TEST(OptimizerMathErrorsTest, MismatchesAreOurErrors) {
  const at::Tensor a = at::zeros({4}, at::kFloat);
  const at::Tensor b = at::zeros({5}, at::kFloat);
  EXPECT_THROW(adamw_update(a, b, a, a, kAdamW), InternalError);
  EXPECT_THROW(adamw_update(a, a, a, a, {.step = 0}), InternalError);
  EXPECT_THROW(sgd_momentum_update(a, a, {}, {.momentum = 0.9}), InternalError);
}

} // namespace
} // namespace palimpsest::kernels
