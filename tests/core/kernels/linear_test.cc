// Covers: core/kernels/onednn_matmul.cc

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <ATen/ops/matmul.h>

#include <array>
#include <thread>

namespace palimpsest::kernels {
namespace {

using LinearTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(LinearTest);

struct Shape {
  int64_t m, k, n;
};
constexpr std::array<Shape, 9> kShapes{
    {{1, 1, 1},
     {1, 7, 24},
     {7, 1, 56},
     {24, 56, 1},
     {56, 67, 7},
     {67, 512, 24},
     {512, 24, 67},
     {67, 1408, 512},
     {1, 512, 1408}}};

TEST_P(LinearTest, ForwardIsTheProductPlusBiasPlusResidual) {
  const auto dtype = GetParam();
  for (const auto& [m, k, n] : kShapes) {
    const at::Tensor x = sample({m, k}, dtype);
    const at::Tensor w = sample({n, k}, dtype);
    const at::Tensor bias = sample({n}, dtype);
    const at::Tensor residual = sample({m, n}, dtype);
    const at::Tensor product = at::matmul(x, w.t());
    const at::Tensor weight = at_odd_offset(w.to(dtype));
    const double limit = tolerance(dtype);
    EXPECT_LE(difference(linear_forward(x.to(dtype), weight), product), limit);
    EXPECT_LE(
        difference(linear_forward(x.to(dtype), weight, bias.to(dtype)), product + bias), limit);
    const at::Tensor y = linear_forward(x.to(dtype), weight, bias.to(dtype), residual.to(dtype));
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_LE(difference(y, product + bias + residual), limit) << m << " " << k << " " << n;
    const at::Tensor in_place = residual.to(dtype).clone();
    linear_forward_out(in_place, x.to(dtype), weight, bias.to(dtype), in_place);
    EXPECT_LE(difference(in_place, product + bias + residual), limit);
  }
}

// As GPT-2 stores its weights: [K,N], used as the transposed view.
TEST_P(LinearTest, AWeightMayBeATransposedView) {
  const auto dtype = GetParam();
  for (const auto& [m, k, n] : kShapes) {
    const at::Tensor x = sample({m, k}, dtype);
    const at::Tensor w = sample({k, n}, dtype);
    const at::Tensor dy = sample({m, n}, dtype);
    const at::Tensor bias = sample({n}, dtype);
    const at::Tensor weight = at_odd_offset(w.to(dtype)).t();
    const double limit = tolerance(dtype);
    EXPECT_LE(
        difference(linear_forward(x.to(dtype), weight, bias.to(dtype)), at::matmul(x, w) + bias),
        limit);
    EXPECT_LE(
        difference(linear_backward_input(dy.to(dtype), weight), at::matmul(dy, w.t())), limit);
    const at::Tensor before = at::randn({k, n}, at::kFloat);
    const at::Tensor product = at::matmul(x.t(), dy);
    const at::Tensor added = at_odd_offset(before);
    linear_backward_weight(dy.to(dtype), x.to(dtype), added.t());
    EXPECT_LE(difference(added, before + product), 3e-6);
    const at::Tensor stored = at_odd_offset(before);
    linear_backward_weight(dy.to(dtype), x.to(dtype), stored.t(), {}, /*overwrite=*/true);
    EXPECT_LE(difference(stored, product), 3e-6);
  }
}

TEST_P(LinearTest, InputGradientIsWrittenOrAdded) {
  const auto dtype = GetParam();
  for (const auto& [m, k, n] : kShapes) {
    const at::Tensor dy = sample({m, n}, dtype);
    const at::Tensor w = sample({n, k}, dtype);
    const at::Tensor before = sample({m, k}, dtype);
    const at::Tensor product = at::matmul(dy, w);
    EXPECT_LE(
        difference(linear_backward_input(dy.to(dtype), w.to(dtype)), product), tolerance(dtype));
    const at::Tensor dx = before.to(dtype).clone();
    linear_backward_input_out(dx, dy.to(dtype), w.to(dtype), /*accumulate=*/true);
    EXPECT_LE(difference(dx, product + before), tolerance(dtype));
  }
}

TEST_P(LinearTest, WeightGradientIsAddedInFp32) {
  const auto dtype = GetParam();
  for (const auto& [m, k, n] : kShapes) {
    const at::Tensor dy = sample({m, n}, dtype);
    const at::Tensor x = sample({m, k}, dtype);
    const at::Tensor before = at::randn({n, k}, at::kFloat);
    const at::Tensor bias_before = at::randn({n}, at::kFloat);
    const at::Tensor grad_weight = at_odd_offset(before);
    const at::Tensor grad_bias = at_odd_offset(bias_before);
    linear_backward_weight(dy.to(dtype), x.to(dtype), grad_weight, grad_bias);
    // fp32 accuracy for both dtypes: nothing on the way is rounded to bf16.
    EXPECT_LE(difference(grad_weight, before + at::matmul(dy.t(), x)), 3e-6)
        << m << " " << k << " " << n;
    EXPECT_LE(difference(grad_bias, bias_before + dy.sum(0)), 3e-6);

    const at::Tensor added = at::zeros({n, k}, at::kFloat);
    const at::Tensor stored = at::full({n, k}, 7, at::kFloat);
    const at::Tensor stored_bias = at::full({n}, 7, at::kFloat);
    linear_backward_weight(dy.to(dtype), x.to(dtype), added);
    linear_backward_weight(dy.to(dtype), x.to(dtype), stored, stored_bias, /*overwrite=*/true);
    EXPECT_TRUE(same_bits(added, stored));
    EXPECT_LE(difference(stored_bias, dy.sum(0)), 3e-6);
  }
}

// A sum in fp32, rounded once: within half a bf16's distance of what it is exactly, as the nearest
// is, and a little for the order of additions.
TEST_P(LinearTest, ABf16WeightGradientIsRoundedOnce) {
  const auto dtype = GetParam();
  for (const auto& [m, k, n] : kShapes) {
    const at::Tensor dy = sample({m, n}, dtype);
    const at::Tensor x = sample({m, k}, dtype);
    const at::Tensor before = sample({n, k}, at::kBFloat16);
    const at::Tensor bias_before = sample({n}, at::kBFloat16);
    const at::Tensor grad_weight = at_odd_offset(before.to(at::kBFloat16));
    const at::Tensor grad_bias = at_odd_offset(bias_before.to(at::kBFloat16));
    linear_backward_weight(dy.to(dtype), x.to(dtype), grad_weight, grad_bias);
    const at::Tensor exact = before + at::matmul(dy.t(), x);
    const at::Tensor off = (grad_weight.to(at::kDouble) - exact).abs();
    const double noise = 3e-6 * exact.abs().max().item<double>();
    EXPECT_TRUE((off <= exact.abs() / 256 + noise).all().item<bool>()) << m << " " << k << " " << n;
    EXPECT_LE(difference(grad_bias, bias_before + dy.sum(0)), 1.0 / 256);
    linear_backward_weight(dy.to(dtype), x.to(dtype), grad_weight, {}, /*overwrite=*/true);
    const at::Tensor added = at::zeros({n, k}, at::kBFloat16);
    linear_backward_weight(dy.to(dtype), x.to(dtype), added);
    EXPECT_TRUE(same_bits(grad_weight, added));
    const at::Tensor turned = at::zeros({k, n}, at::kBFloat16); // as GPT-2 stores it
    linear_backward_weight(dy.to(dtype), x.to(dtype), turned.t());
    EXPECT_LE(difference(turned.t(), added), 1.0 / 256);
  }
}

TEST_P(LinearTest, StridedRowsAndTransposedInputsGiveTheSameBits) {
  const auto dtype = GetParam();
  const at::Tensor wide = sample({40, 200}, dtype).to(dtype); // not few, whose sums are others
  const at::Tensor x = wide.narrow(1, 50, 67); // rows 200 apart
  const at::Tensor w = sample({56, 67}, dtype).to(dtype);
  EXPECT_LE(difference(linear_forward(x, w), linear_forward(x.contiguous(), w)), tolerance(dtype));
  const at::Tensor turned = w.t().contiguous().t(); // last dimension strided
  EXPECT_TRUE(same_bits(linear_forward(x, turned), linear_forward(x, w)));
  const at::Tensor fused = at::zeros({40, 100}, at::TensorOptions(dtype));
  linear_forward_out(fused.narrow(1, 11, 56), x, w);
  EXPECT_LE(difference(fused.narrow(1, 11, 56), linear_forward(x, w)), tolerance(dtype));
  EXPECT_EQ(fused.narrow(1, 0, 11).abs().sum().item<float>(), 0);
  EXPECT_EQ(fused.narrow(1, 67, 33).abs().sum().item<float>(), 0);
}

TEST_P(LinearTest, NoRowsIsLegal) {
  const auto dtype = GetParam();
  const at::Tensor x = at::empty({0, 7}, dtype);
  const at::Tensor w = sample({5, 7}, dtype).to(dtype);
  EXPECT_EQ(linear_forward(x, w).sizes(), at::IntArrayRef({0, 5}));
  EXPECT_EQ(linear_backward_input(at::empty({0, 5}, dtype), w).sizes(), at::IntArrayRef({0, 7}));
  const at::Tensor grad = at::full({5, 7}, 3, at::kFloat);
  const at::Tensor grad_bias = at::full({5}, 3, at::kFloat);
  linear_backward_weight(at::empty({0, 5}, dtype), x, grad, grad_bias);
  EXPECT_TRUE(same_bits(grad, at::full({5, 7}, 3, at::kFloat)));
  EXPECT_TRUE(same_bits(grad_bias, at::full({5}, 3, at::kFloat)));
  linear_backward_weight(at::empty({0, 5}, dtype), x, grad, grad_bias, /*overwrite=*/true);
  EXPECT_TRUE(same_bits(grad, at::zeros({5, 7}, at::kFloat)));
}

TEST(LinearBf16Test, WeightGradientHoldsWhatBf16CannotRepresent) {
  const at::Tensor dy = at::full({2, 1}, 1, at::kBFloat16);
  const at::Tensor x = at::empty({2, 1}, at::kBFloat16);
  x.fill_(1).select(0, 1).fill_(0x1p-10); // 1 + 2^-10 needs 11 bits; bf16 has 8
  const at::Tensor grad = at::zeros({1, 1}, at::kFloat);
  linear_backward_weight(dy, x, grad);
  EXPECT_EQ(grad.item<float>(), 1 + 0x1p-10F);
  linear_backward_weight(dy, x, grad);
  EXPECT_EQ(grad.item<float>(), 2 + 0x1p-9F);
}

TEST(LinearFallbackTest, Fp64TakesAtenAndAgrees) {
  const at::Tensor x = at::randn({5, 7}, at::kDouble);
  const at::Tensor w = at::randn({3, 7}, at::kDouble);
  const at::Tensor residual = at::randn({5, 3}, at::kDouble);
  EXPECT_LE(difference(linear_forward(x, w, {}, residual), at::matmul(x, w.t()) + residual), 1e-14);
  const at::Tensor grad = at::zeros({3, 7}, at::kDouble);
  linear_backward_weight(residual, x, grad);
  EXPECT_LE(difference(grad, at::matmul(residual.t(), x)), 1e-14);
}

TEST(LinearErrorsTest, MismatchesAreOurErrors) {
  const at::Tensor x = at::zeros({5, 7}, at::kFloat);
  EXPECT_THROW(linear_forward(x, at::zeros({3, 8}, at::kFloat)), InternalError);
  EXPECT_THROW(linear_forward(x, at::zeros({3, 7}, at::kBFloat16)), InternalError);
  EXPECT_THROW(linear_backward_input(x, at::zeros({3, 7}, at::kFloat)), InternalError);
  EXPECT_THROW(linear_backward_weight(x, x, at::zeros({7, 6}, at::kFloat)), InternalError);
}

TEST(LinearThreadsTest, RanksAsThreadsShareTheCompiledProducts) {
  const at::Tensor w = at::randn({67, 56}, at::kFloat);
  std::array<double, 4> worst{};
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < worst.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      for (int64_t m = 1; m < 40; ++m) {
        const at::Tensor x = at::full({m, 56}, static_cast<double>(rank + 1), at::kFloat);
        const at::Tensor expected = (w.sum(1) * static_cast<double>(rank + 1)).expand({m, 67});
        worst[rank] = std::max(worst[rank], difference(linear_forward(x, w), expected));
      }
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  for (const double error : worst) {
    EXPECT_LE(error, 3e-6);
  }
}

} // namespace
} // namespace palimpsest::kernels
