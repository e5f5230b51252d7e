#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/kernels/decode_attention.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <vector>

namespace palimpsest::kernels {
namespace {

using DecodeAttentionTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(DecodeAttentionTest);

struct Sizes {
  std::vector<int64_t> keys; // of each sequence
  int64_t heads, kv_heads, width;
};

const std::vector<Sizes> kSizes{
    {{1}, 1, 1, 7},
    {{3, 256, 257}, 4, 2, 24},
    {{700}, 8, 1, 64}, // three chunks, the last partly filled
    {{5, 5, 1, 1030}, 6, 3, 16},
};

/// Keys or values of a sequence: a view into the head-major memory of a longer cache.
at::Tensor cached(int64_t keys, const Sizes& sizes, at::ScalarType dtype) {
  const at::Tensor memory = sample({sizes.kv_heads, keys + 9, sizes.width}, dtype).to(dtype);
  return memory.narrow(1, 4, keys).transpose(0, 1);
}

// The textbook's, in fp64.
at::Tensor formula(const at::Tensor& q, const KeysAndValues& seen, double scale) {
  const int64_t group = q.size(0) / seen.k.size(1);
  const auto heads = [&](const at::Tensor& cache) {
    return cache.to(at::kDouble).repeat_interleave(group, 1).transpose(0, 1); // [Hq,S,D]
  };
  const at::Tensor query = q.to(at::kDouble).unsqueeze(1); // [Hq,1,D]
  const at::Tensor scores = at::matmul(query, heads(seen.k).transpose(1, 2)) * scale;
  return at::matmul(at::softmax(scores, -1), heads(seen.v)).squeeze(1);
}

void expect_formula(const Sizes& sizes, at::ScalarType dtype, double limit) {
  const double scale = 1 / std::sqrt(sizes.width);
  std::vector<KeysAndValues> seen;
  for (const int64_t keys : sizes.keys) {
    seen.push_back({cached(keys, sizes, dtype), cached(keys, sizes, dtype)});
  }
  const at::Tensor q = sample({std::ssize(seen), sizes.heads, sizes.width}, dtype).to(dtype);
  const at::Tensor out = decode_attention(q, seen, scale);
  EXPECT_EQ(out.scalar_type(), dtype);
  for (size_t n = 0; n < seen.size(); ++n) {
    const auto row = static_cast<int64_t>(n);
    EXPECT_LE(difference(out[row], formula(q[row], seen[n], scale)), limit) << sizes.keys[n];
  }
}

TEST_P(DecodeAttentionTest, AgreesWithTheFormula) {
  for (const Sizes& sizes : kSizes) {
    expect_formula(sizes, GetParam(), tolerance(GetParam()));
  }
}

TEST(DecodeAttentionFallbackTest, Fp64AgreesWithTheFormula) {
  for (const Sizes& sizes : kSizes) {
    expect_formula(sizes, at::kDouble, 1e-6);
  }
}

TEST_P(DecodeAttentionTest, ASequenceGetsTheSameBitsAloneAndOnAnyThreads) {
  const auto dtype = GetParam();
  const Sizes sizes{{900, 3, 300}, 4, 2, 16};
  std::vector<KeysAndValues> seen;
  for (const int64_t keys : sizes.keys) {
    seen.push_back({cached(keys, sizes, dtype), cached(keys, sizes, dtype)});
  }
  const at::Tensor q = sample({3, 4, 16}, dtype).to(dtype);
  const at::Tensor together = decode_attention(q, seen, 0.25);
  with_thread_counts([&](int) {
    for (int64_t n = 0; n < 3; ++n) {
      const std::vector<KeysAndValues> one = {seen[static_cast<size_t>(n)]};
      EXPECT_TRUE(same_bits(decode_attention(q.narrow(0, n, 1), one, 0.25)[0], together[n]));
    }
  });
}

TEST_P(DecodeAttentionTest, LargeScoresNeitherOverflowNorVanish) {
  const auto dtype = GetParam();
  const at::Tensor k = at::full({600, 1, 8}, 30, dtype);
  k[500].fill_(40); // in the second chunk
  const at::Tensor v = at::zeros({600, 1, 8}, dtype);
  v[500].fill_(1);
  const std::vector<KeysAndValues> seen = {{k, v}};
  const at::Tensor out = decode_attention(at::full({1, 1, 8}, 30, dtype), seen, 1.0);
  EXPECT_EQ(out.min().item<float>(), 1);
}

TEST(DecodeAttentionErrorsTest, MismatchesAreOurErrors) {
  const at::Tensor q = at::zeros({1, 3, 8}, at::kFloat);
  const at::Tensor k = at::zeros({4, 2, 8}, at::kFloat);
  const std::vector<KeysAndValues> two_heads = {{k, k}};
  EXPECT_THROW(decode_attention(q, two_heads, 1.0), InternalError); // 3 heads over 2
  const at::Tensor none = at::zeros({0, 3, 8}, at::kFloat);
  const std::vector<KeysAndValues> empty = {{none, none}};
  EXPECT_THROW(decode_attention(q, empty, 1.0), InternalError);
  const at::Tensor fits = at::zeros({4, 3, 8}, at::kFloat);
  const std::vector<KeysAndValues> two = {{fits, fits}, {fits, fits}};
  EXPECT_THROW(decode_attention(q, two, 1.0), InternalError); // one query, two sequences
}

} // namespace
} // namespace palimpsest::kernels
