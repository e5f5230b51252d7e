#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/dropout.h>
#include <palimpsest/core/kernels/philox.h>
#include <palimpsest/core/kernels/simd_targets.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <hwy/highway.h>

#include <cmath>

namespace palimpsest::kernels {
namespace {

using DropoutTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(DropoutTest);

constexpr DropoutKey kKey{.seed = 0x123456789ULL, .step = 17, .block = 3, .call = 1};

at::Tensor rows(int64_t first, int64_t count) {
  return at::arange(first, first + count, at::kLong);
}

TEST_P(DropoutTest, ValuesAreZeroOrScaled) {
  const auto dtype = GetParam();
  for (const int64_t features : {1, 7, 24, 67, 512, 1408}) {
    const at::Tensor x = sample({2, 5, features}, dtype).to(dtype);
    const at::Tensor factors = dropout_factors(5, features, 0.25, kKey, rows(4, 2));
    const at::Tensor legal = factors.eq(0).logical_or(factors.eq(static_cast<float>(1 / 0.75)));
    EXPECT_TRUE(legal.all().item<bool>());
    const at::Tensor y = dropout_forward(x, 0.25, kKey, rows(4, 2));
    EXPECT_TRUE(same_bits(y, (x.to(at::kFloat) * factors).to(dtype)));
    EXPECT_TRUE(same_bits(dropout_backward(x, 0.25, kKey, rows(4, 2)), y));
  }
}

TEST_P(DropoutTest, MaskDependsOnNoBatchSplitPaddingOrThreads) {
  const auto dtype = GetParam();
  const at::Tensor x = at::full({6, 11, 67}, 1, dtype);
  const at::Tensor whole = dropout_forward(x, 0.5, kKey, rows(100, 6));
  for (const int64_t size : {1, 2, 3}) {
    std::vector<at::Tensor> parts;
    for (int64_t first = 0; first < 6; first += size) {
      parts.push_back(
          dropout_forward(x.narrow(0, first, size), 0.5, kKey, rows(100 + first, size)));
    }
    EXPECT_TRUE(same_bits(at::cat(parts), whole));
  }
  const at::Tensor padded =
      dropout_forward(at::full({6, 19, 67}, 1, dtype), 0.5, kKey, rows(100, 6));
  EXPECT_TRUE(same_bits(padded.narrow(1, 0, 11).contiguous(), whole));
  with_thread_counts(
      [&](int) { EXPECT_TRUE(same_bits(dropout_forward(x, 0.5, kKey, rows(100, 6)), whole)); });
}

TEST(DropoutMaskTest, IsTheDocumentedFunctionOfPhilox) {
  const auto mixed = philox4x32_10({17, 0, 3, 1}, {0x23456789, 0x1});
  const at::Tensor factors = dropout_factors(3, 70, 0.5, kKey, rows(5, 2));
  const std::vector<std::array<int64_t, 3>> elements{{0, 0, 0}, {1, 2, 69}, {0, 1, 33}, {1, 0, 2}};
  for (const auto& [b, t, f] : elements) {
    const auto words = philox4x32_10(
        {static_cast<uint32_t>(f / 4), static_cast<uint32_t>(t), static_cast<uint32_t>(5 + b), 0},
        {mixed[0], mixed[1]});
    EXPECT_EQ(factors[b][t][f].item<float>(), words[f % 4] < 0x80000000U ? 0 : 2);
  }
}

TEST(DropoutMaskTest, EveryInstructionSetDrawsTheSame) {
  const at::Tensor expected = dropout_factors(3, 1408, 0.3, kKey, rows(0, 2));
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    EXPECT_TRUE(same_bits(dropout_factors(3, 1408, 0.3, kKey, rows(0, 2)), expected))
        << hwy::TargetName(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(DropoutMaskTest, DropsTheShareAskedForAndCoordinatesAreIndependent) {
  const int64_t elements = 4 * 64 * 512;
  const auto dropped = [&](double p, const DropoutKey& key) {
    return dropout_factors(64, 512, p, key, rows(0, 4)).eq(0);
  };
  for (const double p : {0.01, 0.1, 0.5, 0.9}) {
    const double count = dropped(p, kKey).sum().item<double>();
    EXPECT_NEAR(count, p * elements, 5 * std::sqrt(elements * p * (1 - p)));
  }
  const at::Tensor base = dropped(0.5, kKey);
  const double sigma = std::sqrt(elements) / 2;
  for (const DropoutKey& other :
       {DropoutKey{kKey.seed + 1, 17, 3, 1},
        DropoutKey{kKey.seed, 18, 3, 1},
        DropoutKey{kKey.seed, 17, 4, 1},
        DropoutKey{kKey.seed, 17, 3, 2}}) {
    EXPECT_NEAR(base.eq(dropped(0.5, other)).sum().item<double>(), elements / 2, 5 * sigma);
  }
  for (const int64_t dim : {0, 1, 2}) { // neighbouring rows, positions, features
    EXPECT_NEAR(base.eq(base.roll(1, dim)).sum().item<double>(), elements / 2, 5 * sigma);
  }
}

TEST(DropoutMaskTest, AttentionTilesAreCutFromOneMask) {
  std::vector<float> whole(40 * 50);
  attention_dropout_factors(
      whole.data(), {.row = 7, .head = 2, .queries = 40, .keys = 50}, 0.5, kKey);
  std::vector<float> tile(9 * 21);
  attention_dropout_factors(
      tile.data(),
      {.row = 7, .head = 2, .first_query = 30, .first_key = 27, .queries = 9, .keys = 21},
      0.5,
      kKey);
  for (size_t q = 0; q < 9; ++q) {
    for (size_t k = 0; k < 21; ++k) {
      EXPECT_EQ(tile[q * 21 + k], whole[(30 + q) * 50 + 27 + k]);
    }
  }
  std::vector<float> other(40 * 50);
  attention_dropout_factors(
      other.data(), {.row = 7, .head = 3, .queries = 40, .keys = 50}, 0.5, kKey);
  EXPECT_NE(other, whole);
}

TEST(DropoutErrorsTest, RefusesImpossibleArguments) {
  const at::Tensor x = at::zeros({2, 1, 4}, at::kFloat);
  EXPECT_THROW(dropout_forward(x, 1.0, kKey, rows(0, 2)), InternalError);
  EXPECT_THROW(dropout_forward(x, -0.1, kKey, rows(0, 2)), InternalError);
  EXPECT_THROW(dropout_forward(x, 0.1, kKey, rows(0, 3)), InternalError);
  EXPECT_TRUE(dropout_forward(x, 0.0, kKey, rows(0, 2)).is_same(x));
  const at::Tensor wide = at::full({2, 1, 4}, 1, at::kDouble);
  EXPECT_TRUE(same_bits(
      dropout_forward(wide, 0.5, kKey, rows(0, 2)).to(at::kFloat),
      dropout_factors(1, 4, 0.5, kKey, rows(0, 2))));
}

} // namespace
} // namespace palimpsest::kernels
