#include <palimpsest/parallel/comm/in_process.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/parallel/comm/conformance.h>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

INSTANTIATE_TEST_SUITE_P(
    InProcess,
    Conformance,
    ::testing::ValuesIn(worlds_of_threads("in_process", in_process_world)),
    name_of);

TEST(InProcess, AWaitingRankDoesTheWorkOfOneThatComputes) {
  std::vector<std::unique_ptr<Communicator>> world = in_process_world(2);
  at::Tensor whole = at::zeros({2});
  at::Tensor other = at::zeros({2});
  Ticket computing = world[1]->all_gather(at::full({1}, 2.0), other);
  world[0]->all_gather(at::full({1}, 1.0), whole).wait();
  EXPECT_EQ(whole[1].item<float>(), 2);
  EXPECT_EQ(other[0].item<float>(), 1);
  EXPECT_TRUE(computing.done());
}

TEST(InProcess, DifferentOperationsAreRefusedAtOnce) {
  std::vector<std::unique_ptr<Communicator>> world = in_process_world(2);
  at::Tensor tensor = at::zeros({3});
  Ticket waiting = world[0]->all_reduce(tensor, ReduceOp::kSum);
  EXPECT_THAT(
      [&] { world[1]->all_reduce(at::zeros({4}), ReduceOp::kSum); },
      ThrowsMessage<InternalError>(HasSubstr(
          "rank 1 of 'world' (in-process, 2 ranks) issued all_reduce (sum) of 4 Float where rank 0 "
          "issued all_reduce (sum) of 3 Float (number 1)")));
  EXPECT_THROW(waiting.wait(), EnvironmentError);
}

} // namespace
} // namespace palimpsest
