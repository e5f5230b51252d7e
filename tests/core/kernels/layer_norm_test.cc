#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/layer_norm.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

namespace palimpsest::kernels {
namespace {

using LayerNormTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(LayerNormTest);

constexpr double kEps = 1e-5;

at::Tensor formula(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor centred = x - x.mean(-1, true);
  return centred * ((centred * centred).mean(-1, true) + kEps).rsqrt() * weight + bias;
}

TEST_P(LayerNormTest, AgreesWithAutogradOfTheFormula) {
  const auto dtype = GetParam();
  for (const int64_t width : {7, 24, 67, 512, 1408}) {
    for (const int64_t rows : {1, 7, 67, 1100}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << width);
      const at::Tensor x = sample_leaf({rows, width}, dtype);
      const at::Tensor weight = sample_leaf({width}, dtype);
      const at::Tensor bias = sample_leaf({width}, dtype);
      const at::Tensor dy = sample({rows, width}, dtype);
      const at::Tensor residual = sample({rows, width}, dtype);
      const at::Tensor y = formula(x, weight, bias);
      y.backward(dy);

      const at::Tensor x_in = x.detach().to(dtype);
      const at::Tensor weight_in = at_odd_offset(weight.detach().to(dtype));
      const auto [mine, statistics] =
          layer_norm_forward(x_in, weight_in, bias.detach().to(dtype), kEps);
      EXPECT_LE(difference(mine, y.detach()), tolerance(dtype));
      const at::Tensor before = at::randn({2, width}, at::kFloat);
      const at::Tensor grads = before.clone();
      const at::Tensor dx = layer_norm_backward(
          dy.to(dtype), x_in, weight_in, statistics, grads.select(0, 0), grads.select(0, 1));
      EXPECT_LE(difference(dx, x.grad()), 3 * tolerance(dtype));
      EXPECT_LE(difference(grads.select(0, 0), before.select(0, 0) + weight.grad()), 1e-5);
      EXPECT_LE(difference(grads.select(0, 1), before.select(0, 1) + bias.grad()), 1e-5);
      const at::Tensor sum = layer_norm_backward(
          dy.to(dtype), x_in, weight_in, statistics, {}, {}, residual.to(dtype));
      EXPECT_LE(difference(sum, x.grad() + residual), 3 * tolerance(dtype));
    }
  }
}

TEST_P(LayerNormTest, OneFrozenParameterLeavesTheOtherItsGradient) {
  const auto dtype = GetParam();
  const at::Tensor x = sample({40, 24}, dtype).to(dtype);
  const at::Tensor dy = sample({40, 24}, dtype).to(dtype);
  const at::Tensor weight = sample({24}, dtype).to(dtype);
  const auto output = layer_norm_forward(x, weight, weight, kEps);
  const at::Tensor both = at::zeros({2, 24}, at::kFloat);
  const at::Tensor apart = at::zeros({2, 24}, at::kFloat);
  layer_norm_backward(dy, x, weight, output.statistics, both.select(0, 0), both.select(0, 1));
  layer_norm_backward(dy, x, weight, output.statistics, apart.select(0, 0));
  layer_norm_backward(dy, x, weight, output.statistics, {}, apart.select(0, 1));
  EXPECT_TRUE(same_bits(apart, both));
}

TEST_P(LayerNormTest, AMeanFarFromZeroCostsNoDigits) {
  const at::Tensor x = sample({5, 300}, GetParam());
  const at::Tensor one = at::full({300}, 1, at::kFloat);
  const at::Tensor zero = at::zeros({300}, at::kFloat);
  const at::Tensor shifted = (x + 1000).to(at::kFloat); // rounded to 6e-5
  EXPECT_LE(
      difference(
          layer_norm_forward(shifted, one, zero, kEps).y,
          formula(shifted.to(at::kDouble), one.to(at::kDouble), zero.to(at::kDouble))),
      1e-4);
}

TEST_P(LayerNormTest, BitsDoNotDependOnThreads) {
  const auto dtype = GetParam();
  const at::Tensor x = sample({200, 67}, dtype).to(dtype);
  const at::Tensor dy = sample({200, 67}, dtype).to(dtype);
  const at::Tensor weight = sample({67}, dtype).to(dtype);
  std::vector<at::Tensor> grads;
  with_thread_counts([&](int) {
    const auto output = layer_norm_forward(x, weight, weight, kEps);
    const at::Tensor grad = at::zeros({2, 67}, at::kFloat);
    layer_norm_backward(dy, x, weight, output.statistics, grad.select(0, 0), grad.select(0, 1));
    grads.push_back(grad);
  });
  EXPECT_TRUE(same_bits(grads[0], grads[1]));
}

TEST_P(LayerNormTest, NoRowsIsLegal) {
  const at::Tensor x = at::empty({0, 8}, GetParam());
  const at::Tensor weight = at::full({8}, 1, GetParam());
  const auto [y, statistics] = layer_norm_forward(x, weight, weight, kEps);
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_EQ(layer_norm_backward(y, x, weight, statistics).sizes(), x.sizes());
}

TEST(LayerNormFallbackTest, Fp64AgreesWithAutograd) {
  const at::Tensor x = sample_leaf({5, 9}, at::kDouble);
  const at::Tensor weight = sample_leaf({9}, at::kDouble);
  const at::Tensor bias = sample_leaf({9}, at::kDouble);
  const at::Tensor dy = at::randn({5, 9}, at::kDouble);
  formula(x, weight, bias).backward(dy);
  const at::Tensor x_in = x.detach();
  const auto output = layer_norm_forward(x_in, weight.detach(), bias.detach(), kEps);
  const at::Tensor grads = at::zeros({2, 9}, at::kDouble);
  const at::Tensor dx = layer_norm_backward(
      dy, x_in, weight.detach(), output.statistics, grads.select(0, 0), grads.select(0, 1));
  EXPECT_LE(difference(output.y, formula(x, weight, bias).detach()), 1e-13);
  EXPECT_LE(difference(dx, x.grad()), 1e-13);
  EXPECT_LE(difference(grads.select(0, 0), weight.grad()), 1e-13);
  EXPECT_LE(difference(grads.select(0, 1), bias.grad()), 1e-13);
}

TEST(LayerNormErrorsTest, MismatchesAreOurErrors) {
  const at::Tensor x = at::zeros({4, 8}, at::kFloat);
  const at::Tensor weight = at::zeros({8}, at::kFloat);
  const at::Tensor other = at::zeros({7}, at::kFloat);
  EXPECT_THROW(layer_norm_forward(x, other, weight, kEps), InternalError);
  EXPECT_THROW(layer_norm_forward(x, weight, other, kEps), InternalError);
  const auto output = layer_norm_forward(x, weight, weight, kEps);
  EXPECT_THROW(layer_norm_backward(x, x, weight, output.statistics, other), InternalError);
  EXPECT_THROW(layer_norm_backward(x, x, weight, other), InternalError);
}

} // namespace
} // namespace palimpsest::kernels
