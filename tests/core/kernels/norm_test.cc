#include <palimpsest/core/kernels/norm.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

namespace palimpsest::kernels {
namespace {

using NormTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(NormTest);

constexpr double kEps = 1e-5;

at::Tensor formula(const at::Tensor& x, const at::Tensor& weight) {
  return x * ((x * x).mean(-1, true) + kEps).rsqrt() * weight;
}

TEST_P(NormTest, AgreesWithAutogradOfTheFormula) {
  const auto dtype = GetParam();
  for (const int64_t width : {1, 7, 24, 56, 67, 512, 1408}) {
    for (const int64_t rows : {1, 7, 67}) {
      const at::Tensor x = sample_leaf({rows, width}, dtype);
      const at::Tensor weight = sample_leaf({width}, dtype);
      const at::Tensor dy = sample({rows, width}, dtype);
      const at::Tensor residual = sample({rows, width}, dtype);
      const at::Tensor y = formula(x, weight);
      y.backward(dy);

      const at::Tensor x_in = x.detach().to(dtype);
      const at::Tensor weight_in = at_odd_offset(weight.detach().to(dtype));
      const RmsNormOutput output = rms_norm_forward(x_in, weight_in, kEps);
      EXPECT_LE(difference(output.y, y.detach()), tolerance(dtype));
      const at::Tensor before = at::randn({width}, at::kFloat);
      const at::Tensor grad_weight = before.clone();
      const at::Tensor dx =
          rms_norm_backward(dy.to(dtype), x_in, weight_in, output.rstd, grad_weight);
      // A width of 1 cancels to almost nothing, so it is measured against the terms that cancel.
      const double scale = width == 1 ? 1e6 : 1;
      EXPECT_LE(difference(dx, x.grad()), 3 * scale * tolerance(dtype)) << rows << " x " << width;
      EXPECT_LE(difference(grad_weight, before + weight.grad()), tolerance(dtype));
      const at::Tensor sum =
          rms_norm_backward(dy.to(dtype), x_in, weight_in, output.rstd, {}, residual.to(dtype));
      EXPECT_LE(difference(sum, x.grad() + residual), 3 * tolerance(dtype));
    }
  }
}

TEST_P(NormTest, RoundsBeforeTheWeightAsHuggingFaceDoes) {
  const auto dtype = GetParam();
  const at::Tensor x = sample({16, 56}, dtype).to(dtype);
  const at::Tensor weight = sample({56}, dtype).to(dtype);
  const auto [y, rstd] = rms_norm_forward(x, weight, kEps);
  EXPECT_TRUE(same_bits(y, (x.to(at::kFloat) * rstd.unsqueeze(1)).to(dtype) * weight));
}

TEST_P(NormTest, BitsDoNotDependOnThreads) {
  const auto dtype = GetParam();
  const at::Tensor x = sample({200, 67}, dtype).to(dtype);
  const at::Tensor dy = sample({200, 67}, dtype).to(dtype);
  const at::Tensor weight = sample({67}, dtype).to(dtype);
  std::vector<at::Tensor> grads;
  with_thread_counts([&](int) {
    const auto output = rms_norm_forward(x, weight, kEps);
    const at::Tensor grad = at::zeros({67}, at::kFloat);
    rms_norm_backward(dy, x, weight, output.rstd, grad);
    grads.push_back(grad);
  });
  EXPECT_TRUE(same_bits(grads[0], grads[1]));
}

TEST_P(NormTest, NoRowsIsLegal) {
  const auto dtype = GetParam();
  const at::Tensor x = at::empty({0, 8}, dtype);
  const at::Tensor weight = at::full({8}, 1, dtype);
  const auto [y, rstd] = rms_norm_forward(x, weight, kEps);
  EXPECT_EQ(y.sizes(), x.sizes());
  const at::Tensor grad = at::full({8}, 2, at::kFloat);
  EXPECT_EQ(rms_norm_backward(y, x, weight, rstd, grad).sizes(), x.sizes());
  EXPECT_TRUE(same_bits(grad, at::full({8}, 2, at::kFloat)));
}

// Gemma's gain: 1 + weight, in fp32.
TEST_P(NormTest, AGainOfOnePlusWeightAgreesWithAutograd) {
  const auto dtype = GetParam();
  const auto gain = RmsGain::kOnePlusWeight;
  for (const int64_t width : {7, 56, 512}) {
    const at::Tensor x = sample_leaf({67, width}, dtype);
    const at::Tensor weight = sample_leaf({width}, dtype);
    const at::Tensor dy = sample({67, width}, dtype);
    const at::Tensor y = formula(x, weight + 1);
    y.backward(dy);
    const at::Tensor x_in = x.detach().to(dtype);
    const at::Tensor weight_in = weight.detach().to(dtype);
    const RmsNormOutput output = rms_norm_forward(x_in, weight_in, kEps, gain);
    EXPECT_LE(difference(output.y, y.detach()), tolerance(dtype));
    const at::Tensor grad = at::zeros({width}, at::kFloat);
    const at::Tensor dx =
        rms_norm_backward(dy.to(dtype), x_in, weight_in, output.rstd, grad, {}, gain);
    EXPECT_LE(difference(dx, x.grad()), 3 * tolerance(dtype));
    EXPECT_LE(difference(grad, weight.grad()), 3e-6); // nothing on the way is rounded
  }
}

// Views of a fused q-k-v tensor, and the gradient in its place.
TEST_P(NormTest, HeadsAreRowsOfTheirOwn) {
  const auto dtype = GetParam();
  for (const int64_t width : {8, 13, 64}) {
    const at::Tensor fused = sample({19, 5, width}, dtype).to(dtype);
    const at::Tensor x = fused.narrow(1, 1, 3);
    const at::Tensor weight = sample({width}, dtype).to(dtype);
    const at::Tensor others = fused.clone();
    const at::Tensor y_fused = at::zeros({19, 4, width}, at::TensorOptions(dtype));
    const at::Tensor rstd = rms_norm_forward_out(y_fused.narrow(1, 1, 3), x, weight, kEps);
    const at::Tensor rows = x.contiguous().view({-1, width});
    const auto expected = rms_norm_forward(rows, weight, kEps);
    EXPECT_TRUE(same_bits(y_fused.narrow(1, 1, 3).reshape({-1, width}), expected.y));
    EXPECT_TRUE(same_bits(rstd, expected.rstd));
    EXPECT_EQ(y_fused.select(1, 0).abs().max().item<float>(), 0);

    const at::Tensor dfused = sample({19, 5, width}, dtype).to(dtype);
    const at::Tensor before = dfused.clone();
    const at::Tensor grad = at::zeros({width}, at::kFloat);
    const at::Tensor expected_grad = at::zeros({width}, at::kFloat);
    const at::Tensor dx = rms_norm_backward(
        before.narrow(1, 1, 3).reshape({-1, width}), rows, weight, expected.rstd, expected_grad);
    rms_norm_backward_(dfused.narrow(1, 1, 3), x, weight, rstd, grad);
    EXPECT_TRUE(same_bits(dfused.narrow(1, 1, 3).reshape({-1, width}), dx));
    EXPECT_TRUE(same_bits(grad, expected_grad));
    EXPECT_TRUE(same_bits(dfused.select(1, 0), before.select(1, 0)));
    EXPECT_TRUE(same_bits(dfused.select(1, 4), before.select(1, 4)));
    EXPECT_TRUE(same_bits(fused, others));
  }
}

TEST(NormFallbackTest, Fp64AgreesWithAutograd) {
  const at::Tensor x = sample_leaf({5, 9}, at::kDouble);
  const at::Tensor weight = sample_leaf({9}, at::kDouble);
  const at::Tensor dy = at::randn({5, 9}, at::kDouble);
  formula(x, weight).backward(dy);
  const at::Tensor x_in = x.detach();
  const auto output = rms_norm_forward(x_in, weight.detach(), kEps);
  const at::Tensor grad = at::zeros({9}, at::kDouble);
  const at::Tensor dx = rms_norm_backward(dy, x_in, weight.detach(), output.rstd, grad);
  EXPECT_LE(difference(dx, x.grad()), 1e-13);
  EXPECT_LE(difference(grad, weight.grad()), 1e-13);
}

} // namespace
} // namespace palimpsest::kernels
