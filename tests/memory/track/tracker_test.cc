#include <palimpsest/memory/track/tracker.h>

#include <palimpsest/core/device/allocator.h>

#include <ATen/ops/empty.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::TensorOptions().dtype(at::kByte));
}

TEST(MemoryTracker, HasEachOperationsOwnPeakAndWhatItLeaves) {
  install_cpu_allocator();
  MemoryContext memory("rank 0");
  const ScopedContext here(memory);
  const at::Tensor before = bytes(1000);
  MemoryTracker tracker(memory);
  EXPECT_EQ(tracker.peak(), 0);
  const Op op = Op::load(0);

  tracker.op_begin(0, op); // 500 stay, 3000 come and go
  const at::Tensor kept = bytes(500);
  bytes(3000);
  tracker.op_end(0, op);
  bytes(9000); // between operations: nobody's
  tracker.op_begin(1, op); // nothing happens
  tracker.op_end(1, op);
  tracker.op_begin(2, op); // frees first: its beginning is its peak
  at::Tensor spent = bytes(200);
  spent = at::Tensor();
  tracker.op_end(2, op);

  ASSERT_EQ(tracker.ops().size(), 3U);
  EXPECT_EQ(tracker.ops()[0].peak, 4500);
  EXPECT_EQ(tracker.ops()[0].live_after, 1500);
  EXPECT_EQ(tracker.ops()[1].peak, 1500);
  EXPECT_EQ(tracker.ops()[1].live_after, 1500);
  EXPECT_EQ(tracker.ops()[2].peak, 1700);
  EXPECT_EQ(tracker.ops()[2].live_after, 1500);
  EXPECT_EQ(tracker.peak(), 4500);

  tracker.op_begin(0, op); // the next step begins anew
  tracker.op_end(0, op);
  ASSERT_EQ(tracker.ops().size(), 1U);
  EXPECT_EQ(tracker.peak(), 1500);
}

} // namespace
} // namespace palimpsest
