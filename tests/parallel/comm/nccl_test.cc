// Covers: parallel/comm/nccl.cc, parallel/comm/no_nccl.cc
#include <palimpsest/parallel/comm/nccl.h>

#include <palimpsest/core/base/error.h>

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(Nccl, ABuildWithoutItSaysSo) {
  if (has_nccl()) {
    GTEST_SKIP() << "this build has NCCL";
  }
  EXPECT_THROW(nccl_engine(nullptr, nullptr, 0, 2, 0), UserError);
}

// NCCL refuses two ranks on one device, so one rank of a group of one is what a single GPU can show.
TEST(Nccl, AGroupOfOneReducesOnTheDevice) {
  if (!has_nccl() || !at::hasCUDA()) {
    GTEST_SKIP() << "needs a build with NCCL and a CUDA device";
  }
  const auto engine = nccl_engine(nullptr, c10::make_intrusive<c10d::HashStore>(), 0, 1, 0);
  const at::Tensor tensor = at::full({1000}, 3.0, at::TensorOptions().device(at::kCUDA));
  const std::unique_ptr<Request> request = engine->all_reduce(tensor, ReduceOp::kSum);
  while (!request->poll()) {
  }
  EXPECT_TRUE(tensor.eq(3).all().item<bool>());
}

} // namespace
} // namespace palimpsest
