#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/embedding.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <ATen/ops/matmul.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/tensor.h>

#include <cmath>

namespace palimpsest::kernels {
namespace {

using EmbeddingTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(EmbeddingTest);

TEST_P(EmbeddingTest, IsTheProductWithOneHotRows) {
  const auto dtype = GetParam();
  const at::Tensor ids = at::tensor(std::vector<int64_t>{3, 0, 3, 10, 3, 7});
  const at::Tensor one_hot = at::one_hot(ids, 11).to(at::kDouble);
  for (const int64_t width : {1, 7, 67, 512}) {
    const at::Tensor weight = sample({11, width}, dtype);
    const at::Tensor dy = sample({6, width}, dtype);
    EXPECT_EQ(difference(embedding_forward(ids, weight.to(dtype)), at::matmul(one_hot, weight)), 0);
    const at::Tensor before = at::randn({11, width}, at::kFloat);
    std::vector<at::Tensor> grads;
    with_thread_counts([&](int) {
      grads.push_back(before.clone());
      embedding_backward(ids, dy.to(dtype), grads.back());
    });
    EXPECT_LE(difference(grads[0], before + at::matmul(one_hot.t(), dy)), 1e-6);
    EXPECT_TRUE(same_bits(grads[0], grads[1]));
  }
}

// The factor is rounded to the table's type, as Gemma's is: 6.9282 to 6.9375 in bf16.
TEST_P(EmbeddingTest, AScaleMultipliesRowsAndGradients) {
  const auto dtype = GetParam();
  const double scale = std::sqrt(48.0);
  const double rounded = dtype == at::kBFloat16 ? 6.9375
      : dtype == at::kHalf                      ? 6.9296875
                                                : static_cast<double>(std::sqrt(48.0F));
  const at::Tensor ids = at::tensor(std::vector<int64_t>{3, 0, 3});
  const at::Tensor weight = sample({4, 7}, dtype).to(dtype);
  const at::Tensor rows = embedding_forward(ids, weight).to(at::kDouble) * rounded;
  EXPECT_TRUE(same_bits(embedding_forward(ids, weight, scale), rows.to(dtype)));
  const at::Tensor dy = sample({3, 7}, dtype).to(dtype);
  const at::Tensor plain = at::zeros({4, 7}, at::kFloat);
  const at::Tensor scaled = plain.clone();
  embedding_backward(ids, dy, plain);
  embedding_backward(ids, dy, scaled, scale);
  EXPECT_LE(difference(scaled, plain.to(at::kDouble) * rounded), 3e-7);
}

// 2,000 ones added one by one in bf16 would stop at 256.
TEST_P(EmbeddingTest, ABf16GradientIsRoundedOnceForAllOfItsIds) {
  const auto dtype = GetParam();
  std::vector<int64_t> numbers(2000, 1);
  numbers.push_back(0);
  const at::Tensor dy = at::full({2001, 67}, 1, at::TensorOptions(dtype));
  std::vector<at::Tensor> grads;
  with_thread_counts([&](int) {
    grads.push_back(at::full({3, 67}, 4, at::kBFloat16));
    embedding_backward(at::tensor(numbers), dy, grads.back());
  });
  EXPECT_TRUE(same_bits(grads[0], grads[1]));
  const at::Tensor wide = grads[0].to(at::kFloat);
  EXPECT_EQ(wide[0].min().item<float>(), 5);
  EXPECT_EQ(wide[1].min().item<float>(), 2000); // of 2004
  EXPECT_EQ(wide[1].max().item<float>(), 2000);
  EXPECT_EQ(wide[2].max().item<float>(), 4);
}

TEST(EmbeddingErrorsTest, IdsOutOfRangeAreOurErrors) {
  const at::Tensor weight = at::zeros({4, 2}, at::kFloat);
  EXPECT_EQ(embedding_forward(at::empty({0}, at::kLong), weight).sizes(), at::IntArrayRef({0, 2}));
  for (const int64_t id : {int64_t{4}, int64_t{-1}}) {
    EXPECT_THROW(embedding_forward(at::tensor({id}), weight), InternalError);
    EXPECT_THROW(
        embedding_backward(at::tensor({id}), at::zeros({1, 2}, at::kFloat), weight), InternalError);
  }
}

} // namespace
} // namespace palimpsest::kernels
