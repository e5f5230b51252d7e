#include <palimpsest/parallel/comm/ordered_sum.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;

// 2^24 + 1 is 2^24 in fp32: adding the ones first, or all parts before the start, would show.
TEST(OrderedSum, AddsFromTheStartOnPartByPart) {
  constexpr float kBig = 16'777'216;
  std::vector<float> onto{kBig, 1};
  const std::vector<float> first{1, kBig};
  const std::vector<float> second{1, -kBig};
  const std::vector<const void*> parts{first.data(), second.data()};
  add_in_order(parts, at::kFloat, onto.data(), at::kFloat, 2);
  EXPECT_THAT(onto, ElementsAre(kBig, 0));
}

TEST(OrderedSum, AddsSixteenBitPartsInFp32) {
  const std::vector<c10::BFloat16> narrow{c10::BFloat16(1.0F), c10::BFloat16(256.0F)};
  std::vector<float> onto{256, 1};
  add_in_order(std::vector<const void*>{narrow.data()}, at::kBFloat16, onto.data(), at::kFloat, 2);
  EXPECT_THAT(onto, ElementsAre(257, 257)); // bf16 has no 257
}

// One element beside a block's and a thread's border, against the same sum one element at a time.
TEST(OrderedSum, BlocksAndThreadsChangeNoBit) {
  constexpr int64_t kCount = 300'001;
  std::vector<float> parts[3], onto(kCount), expected(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    onto[i] = expected[i] = std::sin(static_cast<float>(i));
    for (int part = 0; part < 3; ++part) {
      parts[part].push_back(std::cos(static_cast<float>(i * (part + 2))) * 1e3F);
      expected[i] += parts[part].back();
    }
  }
  const std::vector<const void*> pointers{parts[0].data(), parts[1].data(), parts[2].data()};
  add_in_order(pointers, at::kFloat, onto.data(), at::kFloat, kCount);
  EXPECT_EQ(onto, expected);
}

TEST(OrderedSum, ReducesIntoOneOfItsParts) {
  std::vector<int32_t> first{1, 5, -3}, second{4, 2, -1};
  const std::vector<const void*> parts{first.data(), second.data()};
  reduce_in_order(parts, at::kInt, ReduceOp::kMax, first.data(), 3);
  EXPECT_THAT(first, ElementsAre(4, 5, -1));
  reduce_in_order(parts, at::kInt, ReduceOp::kMin, second.data(), 3);
  EXPECT_THAT(second, ElementsAre(4, 2, -1));
  reduce_in_order(parts, at::kInt, ReduceOp::kSum, second.data(), 3);
  EXPECT_THAT(second, ElementsAre(8, 7, -2));
}

// 256 + 1 + 1 is 258 in fp32, and 256 where bf16 is rounded at each addition.
TEST(OrderedSum, ReducesSixteenBitPartsWithOneRounding) {
  const c10::BFloat16 big(256.0F), one(1.0F);
  c10::BFloat16 result(0.0F);
  reduce_in_order(
      std::vector<const void*>{&big, &one, &one}, at::kBFloat16, ReduceOp::kSum, &result, 1);
  EXPECT_EQ(static_cast<float>(result), 258);
  const c10::Half large(60'000.0F);
  c10::Half sum(0.0F);
  reduce_in_order(std::vector<const void*>{&large, &large}, at::kHalf, ReduceOp::kSum, &sum, 1);
  EXPECT_TRUE(std::isinf(static_cast<float>(sum)));
}

} // namespace
} // namespace palimpsest
