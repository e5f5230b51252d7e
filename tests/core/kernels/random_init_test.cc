#include <palimpsest/core/kernels/random_init.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <cmath>

namespace palimpsest::kernels {
namespace {

at::Tensor normals(int64_t elements, uint64_t stream, int64_t first = 0) {
  const at::Tensor values = at::empty({elements}, at::kFloat);
  normal_fill(values, 2.0, 42, stream, first);
  return values;
}

TEST(RandomInitTest, HasTheMomentsOfTheNormalDistribution) {
  constexpr double kElements = 1 << 20;
  const at::Tensor z = normals(1 << 20, 1).to(at::kDouble) / 2;
  const double root = std::sqrt(kElements);
  EXPECT_NEAR(z.mean().item<double>(), 0, 5 / root);
  EXPECT_NEAR((z * z).mean().item<double>(), 1, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR((z * z * z * z).mean().item<double>(), 3, 5 * std::sqrt(96.0) / root);
  EXPECT_NEAR((z * z.roll(1)).mean().item<double>(), 0, 5 / root);
  // P(|z| < 1) = erf(1 / sqrt 2)
  const double inside = std::erf(std::sqrt(0.5));
  EXPECT_NEAR(
      z.abs().lt(1).to(at::kDouble).mean().item<double>(),
      inside,
      5 * std::sqrt(inside * (1 - inside)) / root);
}

TEST(RandomInitTest, AShardGetsWhatTheWholeHasThere) {
  const at::Tensor whole = normals(10007, 3);
  for (const int64_t first : {1, 2, 3, 4, 4099}) {
    const at::Tensor shard = normals(5001, 3, first);
    EXPECT_TRUE(same_bits(shard, whole.narrow(0, first, 5001)));
  }
  with_thread_counts([&](int) { EXPECT_TRUE(same_bits(normals(10007, 3), whole)); });
  EXPECT_FALSE(same_bits(normals(10007, 4), whole));
}

TEST(RandomInitTest, OtherDtypesAreRoundedFromFp32) {
  const at::Tensor values = at::empty({67}, at::kBFloat16);
  normal_fill(values, 2.0, 42, 3);
  EXPECT_TRUE(same_bits(values, normals(67, 3).to(at::kBFloat16)));
}

TEST(RandomInitTest, UniformNumbersFillTheirIntervalAndDoNotDependOnShards) {
  const at::Tensor whole = at::empty({1 << 20}, at::kFloat);
  uniform_fill(whole, 0.5, 42, 3);
  const at::Tensor z = whole.to(at::kDouble);
  const double root = std::sqrt(static_cast<double>(z.numel()));
  EXPECT_LE(z.abs().max().item<double>(), 0.5);
  EXPECT_GT(z.abs().max().item<double>(), 0.4999);
  EXPECT_NEAR(z.mean().item<double>(), 0, 5 * std::sqrt(1.0 / 12) / root);
  EXPECT_NEAR((z * z).mean().item<double>(), 1.0 / 12, 5 * std::sqrt(1.0 / 180) / root);
  EXPECT_NEAR((z * z.roll(1)).mean().item<double>(), 0, 5.0 / 12 / root);
  const at::Tensor shard = at::empty({5001}, at::kFloat);
  uniform_fill(shard, 0.5, 42, 3, 4099);
  EXPECT_TRUE(same_bits(shard, whole.narrow(0, 4099, 5001)));
}

} // namespace
} // namespace palimpsest::kernels
