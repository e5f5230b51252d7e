#include <palimpsest/core/device/rss.h>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace palimpsest {
namespace {

TEST(Rss, SeesPagesComeAndGo) {
  constexpr int64_t kBytes = 64 << 20;
  constexpr int64_t kSlack = 2 << 20;
  const int64_t before = current_rss();
  const bool may_reset = reset_peak_rss();
  void* const pages =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  EXPECT_LE(current_rss() - before, kSlack); // addresses alone cost nothing
  std::memset(pages, 1, kBytes);
  EXPECT_NEAR(current_rss() - before, kBytes, kSlack);
  munmap(pages, kBytes);
  EXPECT_LE(current_rss() - before, kSlack);
  EXPECT_GE(peak_rss() - before, kBytes - kSlack);
  if (!may_reset) {
    GTEST_SKIP() << "this system does not permit resetting the peak";
  }
  ASSERT_TRUE(reset_peak_rss());
  EXPECT_LE(peak_rss() - before, kSlack);
}

} // namespace
} // namespace palimpsest
