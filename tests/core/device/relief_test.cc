#include <palimpsest/core/device/relief.h>

#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/memory_context.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace palimpsest {
namespace {

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::kByte);
}

class ReliefTest : public ::testing::Test {
 protected:
  ReliefTest() {
    install_cpu_allocator();
    memory_.set_limit(10'000);
    for (int block = 0; block < 3; ++block) {
      buffers_.push_back(bytes(3'000));
    }
  }
  /// Lets go of one buffer at a time.
  bool free_one() {
    ++calls_;
    if (buffers_.empty()) {
      return false;
    }
    buffers_.pop_back();
    return true;
  }

  MemoryContext memory_{"rank 0"};
  ScopedContext here_{memory_};
  std::vector<at::Tensor> buffers_;
  int calls_ = 0;
};

TEST_F(ReliefTest, FreesAsMuchAsAnAllocationWants) {
  const ScopedRelief relief([&] { return free_one(); });
  const at::Tensor small = bytes(1'000);
  EXPECT_EQ(calls_, 0);
  const at::Tensor large = bytes(5'000);
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(memory_.total().live, 3'000 + 1'000 + 5'000);
  EXPECT_FALSE(memory_.take_refusal()); // nothing was refused
}

TEST_F(ReliefTest, AnAllocationIsRefusedWhereItIsNotEnoughOrThereIsNone) {
  EXPECT_THROW(bytes(5'000), c10::OutOfMemoryError);
  {
    const ScopedRelief relief([&] { return free_one(); });
    EXPECT_THROW(bytes(11'000), c10::OutOfMemoryError);
    EXPECT_EQ(calls_, 4); // one too many, which had nothing
    ASSERT_TRUE(memory_.take_refusal());
  }
  calls_ = 0;
  EXPECT_THROW(bytes(11'000), c10::OutOfMemoryError);
  EXPECT_EQ(calls_, 0); // its time is over
}

TEST_F(ReliefTest, HasNoneItselfAndIsThisThreadsAlone) {
  const ScopedRelief relief([&] {
    ++calls_;
    bytes(20'000);
    return true;
  });
  EXPECT_THROW(bytes(5'000), c10::OutOfMemoryError);
  EXPECT_EQ(calls_, 1);
  std::thread([&] {
    const ScopedContext here(memory_);
    EXPECT_THROW(bytes(5'000), c10::OutOfMemoryError);
  }).join();
  EXPECT_EQ(calls_, 1);
}

} // namespace
} // namespace palimpsest
