#include <palimpsest/memory/track/step_trace.h>

#include <palimpsest/core/device/allocator.h>

#include <ATen/ops/empty.h>

#include <gtest/gtest.h>

#include <thread>

namespace palimpsest {
namespace {

using std::chrono::milliseconds;

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::TensorOptions().dtype(at::kByte));
}

class StepTraceTest : public ::testing::Test {
 protected:
  /// A step whose operations last the given milliseconds and hold 1000 bytes each meanwhile.
  void step(const std::vector<int>& lasting, bool skipped = false) {
    for (size_t index = 0; index < lasting.size(); ++index) {
      trace_.op_begin(index, Op::load(0));
      const at::Tensor held = bytes(1000);
      std::this_thread::sleep_for(milliseconds(lasting[index]));
      trace_.op_end(index, Op::load(0));
    }
    trace_.step_end({.step = ++steps_, .skipped = skipped});
  }

  void SetUp() override {
    install_cpu_allocator();
  }
  MemoryContext memory_{"rank 0"};
  ScopedContext here_{memory_};
  StepTrace trace_{memory_, 2};
  int64_t steps_ = 0;
};

TEST_F(StepTraceTest, HasTimesAndBytesOfEachOperation) {
  EXPECT_TRUE(trace_.last().empty());
  step({5, 20});
  const std::vector<TracedOp>& ops = trace_.last();
  ASSERT_EQ(ops.size(), 2U);
  EXPECT_GE(ops[0].begin_s, 0);
  EXPECT_LT(ops[0].begin_s, 0.005);
  EXPECT_GE(ops[0].end_s - ops[0].begin_s, 0.005);
  EXPECT_GE(ops[1].begin_s, ops[0].end_s);
  EXPECT_GE(ops[1].end_s - ops[1].begin_s, 0.020);
  EXPECT_EQ(ops[0].peak_bytes, 1000);
  EXPECT_EQ(ops[1].peak_bytes, 1000);
}

TEST_F(StepTraceTest, KeepsTheLastFullStep) {
  step({0, 0});
  step({0});
  step({0, 0}, /*skipped=*/true);
  EXPECT_EQ(trace_.record().step, 1);
  EXPECT_EQ(trace_.last().size(), 2U);
  step({0, 0});
  EXPECT_EQ(trace_.record().step, 4);
}

// A step that is thrown away in its middle and run again: only the second run counts.
TEST_F(StepTraceTest, ForgetsAnAttemptThatWasRunAgain) {
  trace_.op_begin(0, Op::load(0));
  trace_.op_end(0, Op::load(0));
  step({0, 0});
  EXPECT_EQ(trace_.last().size(), 2U);
}

} // namespace
} // namespace palimpsest
