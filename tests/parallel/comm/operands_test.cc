#include <palimpsest/parallel/comm/operands.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Operands, MessagesNameTheOperationAndTheSizes) {
  const at::Tensor whole = at::zeros({8});
  EXPECT_NO_THROW(check_all_gather(whole.narrow(0, 2, 2), whole, 4));
  EXPECT_THAT(
      [&] { check_all_gather(at::zeros({3}), whole, 4); },
      ThrowsMessage<InternalError>(
          HasSubstr("all_gather: the whole has 8 elements, 4 ranks of 3 need 12")));
  EXPECT_THAT(
      [&] { check_reduce_scatter(whole, at::zeros({2}, at::kHalf), 4); },
      ThrowsMessage<InternalError>(HasSubstr("sums are Float or BFloat16, not Half")));
  EXPECT_THAT(
      [&] { check_all_reduce(at::Tensor()); },
      ThrowsMessage<InternalError>(HasSubstr("the tensor is undefined")));
  EXPECT_THAT(
      [&] { check_transfer(whole, 2, 2, 4); },
      ThrowsMessage<InternalError>(HasSubstr("rank 2 has no peer 2 among 4 ranks")));
}

TEST(Operands, ASumInsideWhatIsAddedIsRefused) {
  const at::Tensor whole = at::zeros({8});
  EXPECT_NO_THROW(check_reduce_scatter(whole, at::zeros({2}), 4));
  EXPECT_NO_THROW(check_reduce_scatter(at::zeros({0}), at::zeros({0}), 4));
  EXPECT_THAT(
      [&] { check_reduce_scatter(whole, whole.narrow(0, 6, 2), 4); },
      ThrowsMessage<InternalError>(HasSubstr("lies inside what is added")));
}

} // namespace
} // namespace palimpsest
