#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/reduce.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <cmath>
#include <limits>

namespace palimpsest::kernels {
namespace {

using ReduceTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(ReduceTest);

std::vector<double> reduce(const at::Tensor& values, ChunkReduction reduction) {
  std::vector<double> chunks(static_cast<size_t>(chunk_count(values.numel())));
  chunk_reduce(values, reduction, chunks);
  return chunks;
}

TEST_P(ReduceTest, ChunksAgreeWithSumsInDouble) {
  const auto dtype = GetParam();
  for (const int64_t elements : {0, 1, 7, 4095, 4096, 4097, 50000}) {
    const at::Tensor wide = sample({elements}, dtype);
    const at::Tensor values = at_odd_offset(wide.to(dtype));
    const auto squares = reduce(values, ChunkReduction::kSumOfSquares);
    const auto sizes = reduce(values, ChunkReduction::kSumOfAbs);
    const auto largest = reduce(values, ChunkReduction::kMaxAbs);
    ASSERT_EQ(static_cast<int64_t>(squares.size()), (elements + 4095) / 4096);
    for (size_t c = 0; c < squares.size(); ++c) {
      const auto first = static_cast<int64_t>(c) * 4096;
      const at::Tensor chunk = wide.narrow(0, first, std::min<int64_t>(4096, elements - first));
      EXPECT_NEAR(squares[c] / (chunk * chunk).sum().item<double>(), 1, 1e-13);
      EXPECT_NEAR(sizes[c] / chunk.abs().sum().item<double>(), 1, 1e-13);
      EXPECT_EQ(largest[c], chunk.abs().max().item<double>());
    }
  }
}

TEST_P(ReduceTest, ShardsAndThreadsKeepTheBits) {
  const auto dtype = GetParam();
  const at::Tensor values = sample({10 * kReduceChunk + 5}, dtype).to(dtype);
  const auto whole = reduce(values, ChunkReduction::kSumOfSquares);
  with_thread_counts([&](int) { EXPECT_EQ(reduce(values, ChunkReduction::kSumOfSquares), whole); });
  auto joined = reduce(values.narrow(0, 0, 3 * kReduceChunk), ChunkReduction::kSumOfSquares);
  const auto rest = reduce(
      values.narrow(0, 3 * kReduceChunk, 7 * kReduceChunk + 5), ChunkReduction::kSumOfSquares);
  joined.insert(joined.end(), rest.begin(), rest.end());
  EXPECT_EQ(joined, whole);
}

TEST_P(ReduceTest, EveryNonFiniteValueIsFoundWhereverItStands) {
  const auto dtype = GetParam();
  for (const int64_t elements : {1, 17, 4097, 70000}) {
    const double large = dtype == at::kHalf ? 6e4 : 3e38; // its sums would overflow
    const at::Tensor values = at::full({elements}, large, dtype);
    EXPECT_TRUE(all_finite(values));
    for (const int64_t at : {int64_t{0}, elements / 2, elements - 1}) {
      for (const double bad : {INFINITY, -INFINITY, NAN}) {
        const at::Tensor spoilt = values.clone();
        spoilt[at].fill_(bad);
        EXPECT_FALSE(all_finite(spoilt));
      }
    }
  }
  EXPECT_TRUE(all_finite(at::empty({0}, dtype)));
}

TEST_P(ReduceTest, MaximumKeepsNan) {
  const at::Tensor values = at::full({100}, 1, GetParam());
  values[17].fill_(NAN);
  EXPECT_TRUE(std::isnan(reduce(values, ChunkReduction::kMaxAbs)[0]));
}

TEST(ReduceFallbackTest, Fp64AgreesWithFp32) {
  const at::Tensor values = at::randn({5000}, at::kFloat);
  for (const auto reduction :
       {ChunkReduction::kSumOfSquares, ChunkReduction::kSumOfAbs, ChunkReduction::kMaxAbs}) {
    const auto narrow = reduce(values, reduction);
    const auto wide = reduce(values.to(at::kDouble), reduction);
    ASSERT_EQ(wide.size(), narrow.size());
    for (size_t c = 0; c < wide.size(); ++c) {
      EXPECT_NEAR(wide[c] / narrow[c], 1, 1e-13);
    }
  }
  EXPECT_FALSE(all_finite(at::full({3}, NAN, at::kDouble)));
  std::vector<double> none;
  EXPECT_THROW(chunk_reduce(values, ChunkReduction::kMaxAbs, none), InternalError);
}

} // namespace
} // namespace palimpsest::kernels
