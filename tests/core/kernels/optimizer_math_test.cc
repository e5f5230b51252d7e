#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/optimizer_math.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <cmath>

namespace palimpsest::kernels {
namespace {

using OptimizerMathTest = KernelsTest;
PALIMPSEST_BOTH_DTYPES(OptimizerMathTest); // the gradients' dtype

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
