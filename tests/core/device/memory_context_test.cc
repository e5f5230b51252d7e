#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/device.h>
#include <palimpsest/core/device/memory_context.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <barrier>
#include <cstdlib>
#include <thread>
#include <vector>

namespace palimpsest {
namespace {

constexpr int64_t kMiB = 1 << 20;

at::Tensor bytes(int64_t n) {
  return at::empty({n}, at::kByte);
}

class MemoryContextTest : public testing::Test {
 protected:
  MemoryContextTest() {
    install_cpu_allocator();
    set_threads(2);
  }
  ~MemoryContextTest() override {
    EXPECT_EQ(memory_.total().live, 0) << "something was not charged back";
  }
  int64_t live(Category category) const {
    return memory_.usage(category).live;
  }
  MemoryContext memory_{"rank 0"};
};

TEST_F(MemoryContextTest, CountsByCategoryExactly) {
  const ScopedContext scope(memory_);
  at::Tensor parameters;
  {
    const ScopedCategory outer(memory_, Category::kParameters);
    parameters = bytes(1000);
    {
      const ScopedCategory inner(memory_, Category::kWorkspace);
      EXPECT_EQ(memory_.category(), Category::kWorkspace);
      bytes(30);
      bytes(20);
    }
    EXPECT_EQ(memory_.category(), Category::kParameters);
    bytes(7);
  }
  bytes(3);
  const MemoryUsage workspace = memory_.usage(Category::kWorkspace);
  EXPECT_EQ(workspace.live, 0);
  EXPECT_EQ(workspace.peak, 30);
  EXPECT_EQ(workspace.allocations, 2);
  EXPECT_EQ(memory_.usage(Category::kParameters).peak, 1007);
  EXPECT_EQ(live(Category::kParameters), 1000);
  EXPECT_EQ(memory_.usage(Category::kUnattributed).peak, 3);
  EXPECT_EQ(memory_.total().peak, 1030);
  EXPECT_EQ(memory_.total().allocations, 5);
  memory_.reset_peaks();
  EXPECT_EQ(memory_.total().peak, 1000);
  EXPECT_EQ(memory_.usage(Category::kWorkspace).peak, 0);
}

TEST_F(MemoryContextTest, AnIntervalHasItsOwnPeak) {
  const ScopedContext scope(memory_);
  bytes(500);
  const at::Tensor held = bytes(100);
  memory_.begin_interval();
  EXPECT_EQ(memory_.interval_peak(), 100);
  bytes(250);
  bytes(50);
  EXPECT_EQ(memory_.interval_peak(), 350);
  memory_.begin_interval();
  EXPECT_EQ(memory_.interval_peak(), 100);
  EXPECT_EQ(memory_.total().peak, 500);
}

TEST_F(MemoryContextTest, RetagMovesABlock) {
  const ScopedContext scope(memory_);
  const ScopedCategory category(memory_, Category::kWorkspace);
  at::Tensor output = bytes(640);
  at::Tensor view = output.slice(0, 100, 200); // moves the whole storage
  EXPECT_TRUE(retag(view.storage(), Category::kActivations));
  EXPECT_EQ(live(Category::kWorkspace), 0);
  EXPECT_EQ(live(Category::kActivations), 640);
  EXPECT_EQ(memory_.usage(Category::kActivations).peak, 640);
  EXPECT_EQ(memory_.total().allocations, 1);
  output.reset();
  view.reset();
  EXPECT_EQ(live(Category::kActivations), 0);

  float foreign[4] = {};
  EXPECT_FALSE(retag(at::from_blob(foreign, {4}).storage(), Category::kActivations));
  EXPECT_FALSE(retag(bytes(0).storage(), Category::kActivations));
}

TEST_F(MemoryContextTest, ScopesOfContextsNest) {
  MemoryContext host("rank 0, host");
  const int64_t before = MemoryContext::process().usage(Category::kUnattributed).live;
  at::Tensor a, b, c, d;
  {
    const ScopedContext device_scope(memory_);
    a = bytes(10);
    {
      const ScopedContext host_scope(host, Category::kOptimizer);
      b = bytes(200);
    }
    c = bytes(40);
  }
  d = bytes(3000);
  EXPECT_EQ(memory_.total().live, 50);
  EXPECT_EQ(host.usage(Category::kOptimizer).live, 200);
  EXPECT_EQ(MemoryContext::process().usage(Category::kUnattributed).live - before, 3000);
}

TEST_F(MemoryContextTest, APinnedThreadKeepsItsCategory) {
  const ScopedContext scope(memory_);
  const ScopedCategory category(memory_, Category::kActivations);
  at::Tensor sent;
  std::thread([&] {
    const ScopedContext communication(memory_, Category::kCommunication);
    sent = bytes(100);
  }).join();
  EXPECT_EQ(live(Category::kCommunication), 100);
  EXPECT_EQ(live(Category::kActivations), 0);
}

TEST_F(MemoryContextTest, BlocksAndThreadsMayOutliveTheirContext) {
  at::Tensor outlives;
  const int64_t before = MemoryContext::process().total().live;
  {
    MemoryContext brief("brief");
    const ScopedContext scope(brief);
    adopt_openmp_workers(brief);
    outlives = bytes(100);
  }
  outlives.reset();
  std::vector<at::Tensor> made(2);
#pragma omp parallel num_threads(2)
  made[omp_get_thread_num()] = bytes(50);
  EXPECT_EQ(MemoryContext::process().total().live - before, 100);
}

TEST_F(MemoryContextTest, OpenMPWorkersAllocateForTheirRank) {
  const ScopedContext scope(memory_);
  adopt_openmp_workers(memory_);
  for (const Category category : {Category::kActivations, Category::kGradients}) {
    const ScopedCategory now(memory_, category);
    std::vector<at::Tensor> made(2);
    at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t) { made[begin] = bytes(kMiB); });
    EXPECT_EQ(live(category), 2 * kMiB);
  }
}

TEST_F(MemoryContextTest, WorkersAddedBySetThreadsAreTaggedToo) {
  const ScopedContext scope(memory_);
  const ScopedCategory category(memory_, Category::kWorkspace);
  for (const int threads : {1, 3, 2, 4}) {
    set_threads(threads);
    std::vector<at::Tensor> made(threads);
    at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t) { made[begin] = bytes(100); });
    EXPECT_EQ(live(Category::kWorkspace), 100 * threads);
  }
}

TEST_F(MemoryContextTest, WorkersReplacedAfterASmallerRegionAreTaggedAgain) {
  const ScopedContext scope(memory_);
  set_threads(4);
  // A region of two threads ends the other two; the next one of four starts new ones.
#pragma omp parallel num_threads(2)
  bytes(1);
  adopt_openmp_workers(memory_);
  std::vector<at::Tensor> made(4);
  at::parallel_for(0, 4, 1, [&](int64_t begin, int64_t) { made[begin] = bytes(100); });
  EXPECT_EQ(memory_.total().live, 400);
}

TEST_F(MemoryContextTest, FlashAttentionAllocatesInsideWorkersAndAllIsAttributed) {
  // On a fresh thread, whose workers nobody tagged yet.
  std::thread([&] {
    MemoryContext& process = MemoryContext::process();
    at::set_num_threads(2);
    const ScopedContext scope(memory_);
    const ScopedCategory category(memory_, Category::kActivations);
    const at::Tensor q = at::rand({1, 4, 128, 32});
    const auto [output, logsumexp] =
        at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, true);
    const auto missed_in_backward = [&, output = output, logsumexp = logsumexp] {
      const int64_t before = process.total().allocations;
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          q, q, q, q, output, logsumexp, 0.0, true);
      return process.total().allocations - before;
    };
    EXPECT_GT(missed_in_backward(), 0);
    adopt_openmp_workers(memory_);
    EXPECT_EQ(missed_in_backward(), 0);
  }).join();
}

/// A small block's forward and backward of ATen ops.
void forward_and_backward() {
  at::Tensor x = at::rand({2, 64, 128}).requires_grad_();
  const at::Tensor qkv = at::rand({384, 128}).requires_grad_();
  const at::Tensor up = at::rand({512, 128}).requires_grad_();
  const at::Tensor down = at::rand({128, 512}).requires_grad_();
  const at::Tensor heads = at::linear(x, qkv).view({2, 64, 3, 4, 32}).permute({2, 0, 3, 1, 4});
  const at::Tensor attended = std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(heads[0], heads[1], heads[2], 0.0, true));
  const at::Tensor h = x.add(attended.transpose(1, 2).reshape({2, 64, 128}));
  at::linear(at::silu(at::linear(h, up)), down).sum().backward();
}

TEST_F(MemoryContextTest, TwoRankThreadsAtOnce) {
  MemoryContext other("rank 1");
  const int64_t process_before = MemoryContext::process().total().allocations;
  std::barrier together(2);
  const auto rank = [&](MemoryContext& memory, int64_t held_bytes) {
    const ScopedContext scope(memory);
    set_threads(2);
    const ScopedCategory category(memory, Category::kActivations);
    const at::Tensor held = bytes(held_bytes);
    for (int i = 0; i < 5; ++i) {
      together.arrive_and_wait();
      forward_and_backward();
      EXPECT_EQ(memory.total().live, held_bytes);
    }
  };
  std::thread first(rank, std::ref(memory_), 1000);
  std::thread second(rank, std::ref(other), 2000);
  first.join();
  second.join();
  EXPECT_EQ(memory_.total().live, 0);
  EXPECT_EQ(other.total().live, 0);
  // The same work but for what was held.
  EXPECT_EQ(memory_.total().peak - 1000, other.total().peak - 2000);
  EXPECT_EQ(memory_.total().allocations, other.total().allocations);
  EXPECT_EQ(MemoryContext::process().total().allocations, process_before);
}

TEST_F(MemoryContextTest, AtMostOnePercentOfAStepIsUnattributed) {
  const int64_t process_before = MemoryContext::process().total().live;
  const ScopedContext scope(memory_);
  adopt_openmp_workers(memory_);
  {
    const ScopedCategory category(memory_, Category::kActivations);
    forward_and_backward();
  }
  const int64_t unattributed = memory_.usage(Category::kUnattributed).peak +
      MemoryContext::process().total().live - process_before;
  EXPECT_GT(memory_.usage(Category::kActivations).peak, 512 * 128 * 4);
  EXPECT_LE(unattributed, memory_.total().peak / 100);
}

TEST_F(MemoryContextTest, TheHookSeesEveryAllocationAndMayRefuseIt) {
  const ScopedContext scope(memory_);
  adopt_openmp_workers(memory_);
  forward_and_backward(); // what is allocated once only
  const int64_t before = memory_.total().allocations;
  forward_and_backward();
  const int64_t in_a_step = memory_.total().allocations - before;
  ASSERT_GT(in_a_step, 20);
  const int64_t stride = std::getenv("PALIMPSEST_FULL") != nullptr ? 1 : 7;
  for (int64_t k = 1; k <= in_a_step; k += stride) {
    memory_.set_allocation_hook(fail_at_allocation(k));
    EXPECT_THROW(forward_and_backward(), c10::OutOfMemoryError) << "allocation " << k;
    memory_.set_allocation_hook(fail_at_allocation(in_a_step + 1));
    EXPECT_NO_THROW(forward_and_backward()); // also flushes what the engine's queue held
    EXPECT_EQ(memory_.total().live, 0) << "allocation " << k;
  }
  std::vector<int64_t> seen;
  memory_.set_allocation_hook([&](int64_t n) { seen.push_back(n); });
  bytes(17);
  memory_.set_allocation_hook({});
  bytes(18);
  EXPECT_EQ(seen, std::vector<int64_t>{17});
}

TEST_F(MemoryContextTest, ARefusalIsTakenOnceWithWhatWasHeld) {
  const ScopedContext scope(memory_);
  EXPECT_FALSE(memory_.take_refusal());
  at::Tensor parameters;
  {
    const ScopedCategory category(memory_, Category::kParameters);
    parameters = bytes(1000);
  }
  memory_.set_limit(3000);
  {
    const ScopedCategory category(memory_, Category::kWorkspace);
    EXPECT_THROW(bytes(2001), c10::OutOfMemoryError);
  }
  const auto refused = memory_.take_refusal();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->bytes, 2001);
  EXPECT_EQ(refused->category, Category::kWorkspace);
  EXPECT_EQ(refused->live, 1000);
  EXPECT_EQ(refused->limit, 3000);
  EXPECT_EQ(refused->by_category[static_cast<size_t>(Category::kParameters)], 1000);
  EXPECT_EQ(refused->by_category[static_cast<size_t>(Category::kWorkspace)], 0);
  EXPECT_FALSE(memory_.take_refusal());
  memory_.set_allocation_hook(fail_at_allocation(1));
  EXPECT_THROW(bytes(5), c10::OutOfMemoryError);
  memory_.set_allocation_hook({});
  EXPECT_EQ(memory_.take_refusal()->bytes, 5);
}

} // namespace
} // namespace palimpsest
