#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/rotary.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <ATen/ops/tensor.h>

#include <cmath>

namespace palimpsest::kernels {
namespace {

using RotaryTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(RotaryTest);

std::vector<float> frequencies(int64_t half) {
  std::vector<float> result;
  for (int64_t i = 0; i < half; ++i) {
    result.push_back(
        static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half))));
  }
  return result;
}

// Turns feature i with feature i + D/2 by position * frequency, in double.
double rotated(const at::Tensor& head, int64_t i, int64_t position, double sign, double scaling) {
  const int64_t half = head.numel() / 2;
  const int64_t pair = i % half;
  const double angle = sign * static_cast<double>(position) * frequencies(half)[pair];
  const double a = head[pair].item<double>();
  const double b = head[pair + half].item<double>();
  return scaling *
      (i < half ? a * std::cos(angle) - b * std::sin(angle)
                : b * std::cos(angle) + a * std::sin(angle));
}

TEST_P(RotaryTest, TurnsPairsOfFeaturesInPlaceOnStridedViews) {
  const auto dtype = GetParam();
  for (const int64_t width : {2, 14, 24, 64}) {
    const RotaryTable table(frequencies(width / 2), 1.5F, 20);
    const at::Tensor fused = sample({2, 3, 5, width}, dtype).to(dtype);
    const at::Tensor positions = at::tensor(std::vector<int64_t>{0, 1, 2, 19, 4, 4}).view({2, 3});
    for (const bool given : {false, true}) {
      const at::Tensor all = fused.clone();
      const at::Tensor back = fused.clone();
      const at::Tensor where = given ? positions : at::Tensor();
      rotary_forward_(all.narrow(2, 1, 2), table, where);
      rotary_backward_(back.narrow(2, 1, 2), table, where);
      for (const int64_t untouched : {0, 3, 4}) {
        EXPECT_TRUE(same_bits(all.select(2, untouched), fused.select(2, untouched)));
      }
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t t = 0; t < 3; ++t) {
          const int64_t position = given ? positions[b][t].item<int64_t>() : t;
          for (int64_t i = 0; i < width; ++i) {
            const at::Tensor head = fused[b][t][2];
            const double limit = dtype == at::kFloat ? 1e-5 : 4e-2;
            EXPECT_NEAR(all[b][t][2][i].item<double>(), rotated(head, i, position, 1, 1.5), limit);
            EXPECT_NEAR(
                back[b][t][2][i].item<double>(), rotated(head, i, position, -1, 1.5), limit);
          }
        }
      }
    }
  }
}

TEST_P(RotaryTest, BackwardUndoesForward) {
  const auto dtype = GetParam();
  const RotaryTable table(frequencies(28), 1.0F, 512);
  const at::Tensor x = sample({1, 512, 2, 56}, dtype).to(dtype);
  const at::Tensor turned = x.clone();
  rotary_forward_(turned, table);
  EXPECT_GT(difference(turned, x), 0.1);
  rotary_backward_(turned, table);
  EXPECT_LE(difference(turned, x), tolerance(dtype));
}

TEST(RotaryFallbackTest, Fp64AgreesWithFp32) {
  const RotaryTable table(frequencies(7), 1.0F, 9);
  const at::Tensor x = at::randn({2, 9, 3, 14}, at::kDouble);
  const at::Tensor narrow = x.to(at::kFloat);
  rotary_forward_(x, table);
  rotary_forward_(narrow, table);
  EXPECT_LE(difference(narrow, x), 1e-6);
}

TEST(RotaryErrorsTest, PositionsOutsideTheTableAreOurErrors) {
  const RotaryTable table(frequencies(2), 1.0F, 3);
  EXPECT_THROW(rotary_forward_(at::zeros({1, 4, 1, 4}, at::kFloat), table), InternalError);
  EXPECT_THROW(rotary_forward_(at::zeros({1, 2, 1, 6}, at::kFloat), table), InternalError);
  for (const int64_t position : {int64_t{-1}, int64_t{3}}) {
    EXPECT_THROW(
        rotary_forward_(
            at::zeros({1, 1, 1, 4}, at::kFloat), table, at::tensor({position}).view({1, 1})),
        InternalError);
  }
}

} // namespace
} // namespace palimpsest::kernels
