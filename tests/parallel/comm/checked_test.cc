#include <palimpsest/parallel/comm/checked.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/in_process.h>
#include <palimpsest/tests/parallel/comm/conformance.h>

#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::vector<std::unique_ptr<Communicator>> checked_world(int size, const CommSettings& settings) {
  std::vector<std::unique_ptr<Communicator>> world = in_process_world(size, settings);
  for (std::unique_ptr<Communicator>& rank : world) {
    rank = checked(std::move(rank));
  }
  return world;
}

INSTANTIATE_TEST_SUITE_P(
    Checked,
    Conformance,
    ::testing::ValuesIn([] {
      std::vector<TestWorld> worlds = worlds_of_threads("checked", checked_world);
      worlds[2].survives_failure = false; // it throws already when an operation is issued
      return std::vector<TestWorld>{worlds[0], worlds[2]};
    }()),
    name_of);

/// What each of three ranks says when rank 1 does something else than the two others.
std::vector<std::string> errors(const RankBody& usual, const RankBody& different) {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_threads(checked_world(3, {}), [&](Communicator& comm) {
    std::string message = "no error";
    try {
      (comm.rank() == 1 ? different : usual)(comm);
    } catch (const InternalError& error) {
      message = error.what();
    }
    const std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  return messages;
}

TEST(Checked, ADifferentOperationIsNamedByRankOnAllRanks) {
  const auto messages = errors(
      [](Communicator& comm) { comm.all_reduce(at::zeros({4}), ReduceOp::kSum).wait(); },
      [](Communicator& comm) { comm.barrier().wait(); });
  EXPECT_THAT(
      messages,
      AllOf(
          ::testing::SizeIs(3),
          Each(AllOf(
              HasSubstr("rank 1 calls barrier"),
              HasSubstr("calls all_reduce (sum) of [4] Float")))));
}

TEST(Checked, DifferentShapesDtypesReductionsAndRootsAreNamed) {
  const auto sum = [](std::vector<int64_t> shape, at::ScalarType dtype, ReduceOp op) {
    return [=](Communicator& comm) { comm.all_reduce(at::zeros(shape, dtype), op).wait(); };
  };
  const RankBody usual = sum({4, 2}, at::kFloat, ReduceOp::kSum);
  EXPECT_THAT(
      errors(usual, sum({2, 4}, at::kFloat, ReduceOp::kSum)),
      Each(HasSubstr("rank 1 calls all_reduce (sum) of [2, 4] Float")));
  EXPECT_THAT(
      errors(usual, sum({4, 2}, at::kBFloat16, ReduceOp::kSum)),
      Each(HasSubstr("rank 1 calls all_reduce (sum) of [4, 2] BFloat16")));
  EXPECT_THAT(
      errors(usual, sum({4, 2}, at::kFloat, ReduceOp::kMax)),
      Each(HasSubstr("rank 1 calls all_reduce (max)")));
  EXPECT_THAT(
      errors(
          [](Communicator& comm) { comm.broadcast(at::zeros({1}), 0).wait(); },
          [](Communicator& comm) { comm.broadcast(at::zeros({1}), 2).wait(); }),
      Each(HasSubstr("rank 1 calls broadcast from rank 2 of [1] Float")));
}

TEST(Checked, GroupsSplitFromItAreCheckedToo) {
  const auto in_group = [](int64_t n) {
    return [n](Communicator& comm) {
      comm.split(0, comm.rank(), "shard")->all_reduce(at::zeros({n}), ReduceOp::kSum).wait();
    };
  };
  EXPECT_THAT(
      errors(in_group(1), in_group(2)),
      Each(AllOf(HasSubstr("rank 1 calls all_reduce (sum) of [2]"), HasSubstr("shard"))));
}

} // namespace
} // namespace palimpsest
