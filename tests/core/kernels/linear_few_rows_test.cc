#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/core/kernels/linear_few_rows.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <ATen/ops/matmul.h>

#include <array>

namespace palimpsest::kernels {
namespace {

using FewRowsTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(FewRowsTest);

struct Shape {
  int64_t k, n;
};
constexpr std::array<Shape, 5> kShapes{{{1, 1}, {7, 259}, {67, 5}, {117, 6}, {512, 1029}}};

TEST_P(FewRowsTest, IsTheProductPlusBiasPlusResidual) {
  const auto dtype = GetParam();
  for (const bool transposed : {false, true}) {
    for (const auto& [k, n] : kShapes) {
      for (const int64_t m : {int64_t{1}, int64_t{2}, int64_t{7}, kFewRows}) {
        const at::Tensor x = sample({m, k}, dtype);
        const at::Tensor w = sample({n, k}, dtype);
        const at::Tensor bias = sample({n}, dtype);
        const at::Tensor residual = sample({m, n}, dtype);
        const at::Tensor stored = at_odd_offset((transposed ? w.t() : w).to(dtype));
        const at::Tensor weight = transposed ? stored.t() : stored;
        ASSERT_TRUE(is_few_rows(x.to(dtype), weight));
        const at::Tensor y = at::empty({m, n}, dtype);
        linear_few_rows(y, x.to(dtype), weight, {}, {});
        EXPECT_LE(difference(y, at::matmul(x, w.t())), tolerance(dtype)) << m << " " << k;
        linear_few_rows(y, x.to(dtype), weight, bias.to(dtype), residual.to(dtype));
        EXPECT_LE(difference(y, at::matmul(x, w.t()) + bias + residual), tolerance(dtype));
      }
    }
  }
}

TEST_P(FewRowsTest, ARowGetsTheSameBitsAloneAndOnAnyThreads) {
  const auto dtype = GetParam();
  for (const bool transposed : {false, true}) {
    const at::Tensor x = sample({kFewRows, 67}, dtype).to(dtype);
    const at::Tensor stored = sample({300, 67}, dtype).to(dtype);
    const at::Tensor weight = transposed ? stored.t().contiguous().t() : stored;
    const at::Tensor together = linear_forward(x, weight);
    with_thread_counts([&](int) {
      for (const int64_t count : {1, 3, 6}) {
        const at::Tensor some = linear_forward(x.narrow(0, 5, count), weight);
        EXPECT_TRUE(same_bits(some, together.narrow(0, 5, count))) << count << transposed;
      }
    });
  }
}

TEST(FewRowsRuleTest, TakesWhatItCanCompute) {
  const at::Tensor weight = at::zeros({8, 4}, at::kFloat);
  EXPECT_TRUE(is_few_rows(at::zeros({kFewRows, 4}, at::kFloat), weight));
  EXPECT_FALSE(is_few_rows(at::zeros({kFewRows + 1, 4}, at::kFloat), weight));
  EXPECT_FALSE(is_few_rows(at::zeros({0, 4}, at::kFloat), weight));
  EXPECT_FALSE(is_few_rows(at::zeros({1, 4}, at::kDouble), weight.to(at::kDouble)));
  const at::Tensor spread = at::zeros({8, 4, 2}, at::kFloat).select(2, 0);
  EXPECT_FALSE(is_few_rows(at::zeros({1, 4}, at::kFloat), spread)); // neither rows nor columns
}

} // namespace
} // namespace palimpsest::kernels
