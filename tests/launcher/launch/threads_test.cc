#include <palimpsest/launcher/launch/threads.h>

#include <gmock/gmock.h>

#include <sched.h>

#include <thread>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Threads, UnboundRanksShareTheMask) {
  EXPECT_EQ(threads_per_rank(8, 1), 8);
  EXPECT_EQ(threads_per_rank(8, 4), 2);
  EXPECT_EQ(threads_per_rank(8, 3), 2);
  EXPECT_EQ(threads_per_rank(2, 4), 1); // more ranks than processors
  EXPECT_EQ(threads_per_rank(1, 1), 1);
}

TEST(Threads, MasksOfAllRanksTellWhoSharesWhat) {
  using Masks = std::vector<std::vector<int>>;
  // Bound to processors of their own.
  EXPECT_EQ(threads_per_rank(Masks{{0, 1}, {2, 3}}, 0), 2);
  // Unbound.
  EXPECT_EQ(threads_per_rank(Masks{{0, 1, 2, 3}, {0, 1, 2, 3}}, 1), 2);
  // Bound to sockets, two ranks on each.
  const Masks sockets = {{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 2, 3}, {4, 5, 6, 7}};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(threads_per_rank(sockets, rank), 2);
  }
  // Three ranks on three processors: three thirds.
  EXPECT_EQ(threads_per_rank(Masks{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}, 2), 1);
  // One rank bound within another's mask.
  const Masks uneven = {{0, 1, 2, 3}, {0, 1}};
  EXPECT_EQ(threads_per_rank(uneven, 0), 3);
  EXPECT_EQ(threads_per_rank(uneven, 1), 1);
  // Never none.
  EXPECT_EQ(threads_per_rank(Masks{{0}, {0}, {0}}, 0), 1);
}

TEST(Threads, SeesTheAffinityMask) {
  const std::vector<int> all = allowed_processors();
  ASSERT_FALSE(all.empty());
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(all.back()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_THAT(allowed_processors(), ElementsAre(all.back()));
  }).join();
}

TEST(Threads, AdviceForMachinesWithSeveralGpus) {
  EXPECT_EQ(launch_advice(0, {"train", "run.yaml"}), std::nullopt);
  EXPECT_EQ(launch_advice(1, {"train", "run.yaml"}), std::nullopt);
  EXPECT_THAT(
      launch_advice(8, {"train", "my run.yaml", "optimizer.betas=[0.9, 0.95]"}).value(),
      HasSubstr("palimpsest launch -n 8 train 'my run.yaml' 'optimizer.betas=[0.9, 0.95]'"));
}

TEST(Threads, LinesForAShell) {
  EXPECT_EQ(shell_line({"a", "b=c", "/d/e.f"}), "a b=c /d/e.f");
  EXPECT_EQ(shell_line({"", "it's", "$x", "a b"}), "'' 'it'\\''s' '$x' 'a b'");
}

} // namespace
} // namespace palimpsest
