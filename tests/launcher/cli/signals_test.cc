// Signals while matrices are multiplied: oneDNN's generated code uses the stack in its own way.

#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/launcher/cli/interrupt.h>
#include <palimpsest/launcher/launch/stop_request.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sin.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <thread>

namespace palimpsest {
namespace {

at::Tensor product() {
  const at::Tensor x = at::arange(1 * 400 * 2 * 64, at::kFloat).sin().view({1, 400, 2, 64});
  return kernels::attention_forward(x, x, x, 0.125, {.causal = true}).out;
}

/// Computes while this process gets the signal all the time; the number of those that were sent.
int compute_under(int signal) {
  const at::Tensor expected = product();
  std::atomic<int> sent = 0;
  std::atomic<bool> done = false;
  std::thread sender([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    for (; !done; ++sent) {
      kill(getpid(), signal);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  for (int round = 0; round < 100; ++round) {
    EXPECT_TRUE(at::equal(product(), expected)) << "round " << round;
  }
  done = true;
  sender.join();
  return sent;
}

TEST(Signals, ARequestToStopDisturbsNoProduct) {
  const StopRequest stop;
  EXPECT_GT(compute_under(SIGUSR1), 100);
  EXPECT_TRUE(stop.requested());
}

TEST(Signals, AnInterruptDisturbsNoProduct) {
  const Interrupt interrupt;
  EXPECT_GT(compute_under(SIGINT), 100);
  EXPECT_TRUE(interrupt.came());
}

} // namespace
} // namespace palimpsest
