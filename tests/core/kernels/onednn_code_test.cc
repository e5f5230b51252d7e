// Products and attention that are new to a process which has hardly any address space left.

#include <palimpsest/core/kernels/onednn_code.h>

#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/kernels/linear.h>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <exception>
#include <fstream>
#include <functional>

namespace palimpsest::kernels {
namespace {

constexpr rlim_t kMiB = 1 << 20;

/// From now on the process gets at most so much more.
void leave(rlim_t bytes) {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit both{.rlim_cur = limit, .rlim_max = limit};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &both), 0);
}

/// Ends the process with 0 where `work` is refused its memory, with 1 where it is done.
[[noreturn]] void end_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception&) { // LibTorch has its own
    _exit(0);
  }
  _exit(1);
}

/// In processes of their own, in which nothing has run.
class OnednnCode : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    at::set_num_threads(1);
  }
};

TEST_F(OnednnCode, AsksForRoomBeforeItIsWritten) {
  EXPECT_EXIT(
      {
        leave(8 * kMiB);
        end_by(onednn::require_code_room);
      },
      ::testing::ExitedWithCode(0),
      "");
  EXPECT_EXIT(
      {
        leave(64 * kMiB);
        end_by(onednn::require_code_room);
      },
      ::testing::ExitedWithCode(1),
      "");
}

// Whatever is left: refused, or done; never a signal.
TEST_F(OnednnCode, ProductsAndAttentionAreRefusedOrDone) {
  for (const rlim_t left : {0, 2, 6, 12, 48}) {
    const auto ends = [](int status) { return WIFEXITED(status); };
    EXPECT_EXIT(
        {
          const at::Tensor x = at::ones({48, 96});
          const at::Tensor weight = at::ones({80, 96});
          leave(left * kMiB);
          end_by([&] { linear_forward(x, weight); });
        },
        ends,
        "")
        << left;
    EXPECT_EXIT(
        {
          const at::Tensor heads = at::ones({1, 40, 2, 16});
          leave(left * kMiB);
          end_by([&] { attention_forward(heads, heads, heads, 0.25, {.causal = true}); });
        },
        ends,
        "")
        << left;
  }
}

} // namespace
} // namespace palimpsest::kernels
