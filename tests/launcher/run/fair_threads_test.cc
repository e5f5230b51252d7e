// Covers: launcher/compose/fair_threads.cc
#include <palimpsest/launcher/compose/fair_threads.h>

#include <palimpsest/launcher/launch/threads.h>
#include <palimpsest/tests/support/ranks/ranks.h>

#include <gtest/gtest.h>

#include <sched.h>

#include <algorithm>
#include <vector>

namespace palimpsest {
namespace {

using Mask = std::vector<int>;

/// What each rank finds, where rank r may run on masks[r] only.
std::vector<int> threads_of(const std::vector<Mask>& masks) {
  std::vector<int> found(masks.size());
  testing::on_ranks(static_cast<int>(masks.size()), [&](Communicator& world, MemoryContext&) {
    const auto rank = static_cast<size_t>(world.rank());
    cpu_set_t allowed; // of this thread, which is the rank
    CPU_ZERO(&allowed);
    for (const int processor : masks[rank]) {
      CPU_SET(static_cast<size_t>(processor), &allowed);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof allowed, &allowed), 0);
    found[rank] = fair_threads(world);
  });
  return found;
}

TEST(FairThreads, RanksShareTheProcessorsThatTheirMasksAllow) {
  const Mask all = allowed_processors();
  const auto count = static_cast<int>(all.size());
  EXPECT_EQ(threads_of({all}), (std::vector<int>{count}));
  EXPECT_EQ(threads_of({{all.front()}}), (std::vector<int>{1}));
  const int half = std::max(1, count / 2);
  EXPECT_EQ(threads_of({all, all}), (std::vector<int>{half, half})) << "nobody is bound";
  EXPECT_EQ(threads_of({{all.back()}, {all.back()}}), (std::vector<int>{1, 1}));
  const int third = std::max(1, count / 3);
  EXPECT_EQ(threads_of({all, all, all}), (std::vector<int>{third, third, third}));
  if (count < 2) {
    GTEST_SKIP() << "one processor: no two ranks can be bound apart";
  }
  const Mask first(all.begin(), all.begin() + half);
  const Mask rest(all.begin() + half, all.end());
  EXPECT_EQ(threads_of({first, rest}), (std::vector<int>{half, count - half})) << "bound apart";
  // One is bound to a processor that the other may use too: half a processor is still a thread.
  EXPECT_EQ(threads_of({{all.front()}, all}), (std::vector<int>{1, std::max(1, count - 1)}));
}

} // namespace
} // namespace palimpsest
