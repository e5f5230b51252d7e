#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/activation.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <array>
#include <cmath>
#include <numbers>

namespace palimpsest::kernels {
namespace {

using ActivationTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(ActivationTest);

constexpr std::array kAll{
    Activation::kSilu,
    Activation::kGeluTanh,
    Activation::kGeluErf,
    Activation::kRelu,
    Activation::kTanh};

at::Tensor formula(const at::Tensor& v, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return v / (1 + (-v).exp());
    case Activation::kGeluTanh:
      return 0.5 * v * (1 + (std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)).tanh());
    case Activation::kGeluErf:
      return 0.5 * v * (1 + (v / std::numbers::sqrt2).erf());
    case Activation::kRelu:
      return v.clamp_min(0);
    case Activation::kTanh:
      return v.tanh();
  }
  return {};
}

TEST_P(ActivationTest, PlainAgreesWithAutogradOfTheFormula) {
  const auto dtype = GetParam();
  for (const Activation activation : kAll) {
    const at::Tensor x = sample_leaf({7, 67}, dtype);
    const at::Tensor dy = sample({7, 67}, dtype);
    const at::Tensor y = formula(x, activation);
    y.backward(dy);
    const at::Tensor x_in = x.detach().to(dtype);
    EXPECT_LE(difference(activation_forward(x_in, activation), y.detach()), tolerance(dtype));
    at::Tensor dx = dy.to(dtype, /*non_blocking=*/false, /*copy=*/true);
    activation_backward(dx, x_in, activation, dx);
    EXPECT_LE(difference(dx, x.grad()), tolerance(dtype));
  }
}

TEST_P(ActivationTest, GatedAgreesWithAutogradOfTheFormula) {
  const auto dtype = GetParam();
  for (const Activation activation : kAll) {
    for (const int64_t width : {1, 7, 24, 56, 67, 512}) {
      const at::Tensor gate_up = sample_leaf({9, 2 * width}, dtype);
      const at::Tensor doutput = sample({9, width}, dtype);
      const at::Tensor y =
          formula(gate_up.narrow(1, 0, width), activation) * gate_up.narrow(1, width, width);
      y.backward(doutput);
      const at::Tensor input = at_odd_offset(gate_up.detach().to(dtype));
      // Where ATen composes two roundings of bf16 instead of one.
      const double limit = 2 * tolerance(dtype);
      EXPECT_LE(difference(glu_forward(input, activation), y.detach()), limit);
      const at::Tensor again = at::full({9, width}, NAN, dtype);
      const at::Tensor gradient = glu_backward(doutput.to(dtype), input, activation, again);
      EXPECT_LE(difference(gradient, gate_up.grad()), limit) << width;
      EXPECT_TRUE(same_bits(again, glu_forward(input, activation)));
      EXPECT_TRUE(same_bits(gradient, glu_backward(doutput.to(dtype), input, activation)));
    }
  }
}

TEST_P(ActivationTest, ExtremesStayFinite) {
  const auto dtype = GetParam();
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    for (const double v : {-3e4, -200.0, -88.0, 88.0, 200.0}) {
      const at::Tensor gate_up = at::full({1, 34}, v, dtype);
      gate_up.narrow(1, 17, 17).fill_(1);
      const at::Tensor y = glu_forward(gate_up, activation);
      const double expected = v < 0 ? 0 : gate_up.select(1, 0).item<double>();
      EXPECT_NEAR(y.select(1, 16).item<double>(), expected, 1e-30);
      const at::Tensor slope =
          glu_backward(at::full({1, 17}, 1, dtype), gate_up, activation).select(1, 0);
      EXPECT_NEAR(slope.item<double>(), v < 0 ? 0 : 1, 1e-20);
    }
  }
}

TEST_P(ActivationTest, NoRowsIsLegalAndOddWidthsAreNot) {
  const auto dtype = GetParam();
  EXPECT_EQ(
      glu_forward(at::empty({0, 8}, dtype), Activation::kSilu).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_THROW(glu_forward(at::zeros({1, 7}, dtype), Activation::kSilu), InternalError);
}

} // namespace
} // namespace palimpsest::kernels
