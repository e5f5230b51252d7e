#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/cross_entropy.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>

#include <cmath>

namespace palimpsest::kernels {
namespace {

using CrossEntropyTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(CrossEntropyTest);

at::Tensor labels_for(int64_t rows, int64_t vocabulary) {
  std::vector<int64_t> labels;
  for (int64_t r = 0; r < rows; ++r) {
    labels.push_back(r % 3 == 2 ? kIgnoredLabel : (r * 5 + 3) % vocabulary);
  }
  return at::tensor(labels);
}

TEST_P(CrossEntropyTest, AgreesWithAutogradOfTheFormula) {
  const auto dtype = GetParam();
  for (const int64_t vocabulary : {1, 7, 24, 67, 512, 8195}) {
    const at::Tensor logits = sample_leaf({7, vocabulary}, dtype);
    const at::Tensor labels = labels_for(7, vocabulary);
    const at::Tensor kept = labels.ne(kIgnoredLabel).to(at::kDouble);
    const at::Tensor picked =
        at::log_softmax(logits, 1).gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1);
    const at::Tensor loss = -(picked * kept).sum();
    (loss * 0.125).backward();
    const at::Tensor chunk = logits.detach().to(dtype).clone();
    const double expected = loss.item<double>();
    EXPECT_NEAR(cross_entropy_forward(chunk, labels), expected, 3e-6 * (1 + expected));
    EXPECT_TRUE(same_bits(chunk, logits.detach().to(dtype)));
    const double sum = cross_entropy_forward_backward_(chunk, labels, 0.125);
    EXPECT_NEAR(sum, expected, 3e-6 * (1 + expected));
    if (vocabulary > 1) {
      EXPECT_LE(difference(chunk, logits.grad()), tolerance(dtype)) << vocabulary;
    }
    EXPECT_EQ(chunk.select(0, 2).abs().max().item<float>(), 0); // an ignored row
  }
}

TEST_P(CrossEntropyTest, LargeLogitsNeitherOverflowNorVanish) {
  const auto dtype = GetParam();
  const at::Tensor logits = at::full({1, 40}, -30000, dtype);
  logits.select(1, 33).fill_(30000);
  EXPECT_EQ(cross_entropy_forward(logits, at::tensor({int64_t{33}})), 0);
  const double exact = logits.select(1, 33).item<double>() - logits.select(1, 0).item<double>();
  EXPECT_EQ(cross_entropy_forward_backward_(logits, at::tensor({int64_t{0}}), 2.0), exact);
  EXPECT_EQ(logits.select(1, 33).item<float>(), 2);
  EXPECT_EQ(logits.select(1, 0).item<float>(), -2);
}

TEST_P(CrossEntropyTest, BitsDoNotDependOnThreads) {
  const auto dtype = GetParam();
  const at::Tensor logits = sample({67, 512}, dtype).to(dtype);
  std::vector<double> sums;
  std::vector<at::Tensor> gradients;
  with_thread_counts([&](int) {
    gradients.push_back(logits.clone());
    sums.push_back(cross_entropy_forward_backward_(gradients.back(), labels_for(67, 512), 1.0));
  });
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_TRUE(same_bits(gradients[0], gradients[1]));
}

TEST(CrossEntropyFallbackTest, Fp64AgreesWithTheClosedForm) {
  const at::Tensor logits = at::zeros({2, 4}, at::kDouble);
  const at::Tensor labels = at::tensor(std::vector<int64_t>{1, kIgnoredLabel});
  EXPECT_NEAR(cross_entropy_forward_backward_(logits, labels, 4.0), std::log(4.0), 1e-15);
  const at::Tensor expected = at::tensor({1.0, -3.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0}, at::kDouble);
  EXPECT_LE(difference(logits, expected.view({2, 4})), 1e-15);
}

TEST(CrossEntropyErrorsTest, LabelsOutOfRangeAreOurErrors) {
  const at::Tensor logits = at::zeros({1, 4}, at::kFloat);
  EXPECT_EQ(cross_entropy_forward(at::zeros({0, 4}, at::kFloat), at::empty({0}, at::kLong)), 0);
  for (const int64_t label : {int64_t{4}, int64_t{-1}, int64_t{-101}}) {
    EXPECT_THROW(cross_entropy_forward(logits, at::tensor({label})), InternalError);
  }
}

} // namespace
} // namespace palimpsest::kernels
