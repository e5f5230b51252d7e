#include <palimpsest/launcher/cli/interrupt.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

namespace palimpsest {
namespace {

TEST(Interrupt, CountsOnceAndIsForgotten) {
  Interrupt interrupt;
  EXPECT_FALSE(interrupt.came());
  std::raise(SIGINT);
  EXPECT_TRUE(interrupt.came());
  EXPECT_TRUE(interrupt.take());
  EXPECT_FALSE(interrupt.take());
}

TEST(Interrupt, EndsAWaitForInput) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Interrupt interrupt;
  const pthread_t waiting = pthread_self();
  std::thread sender([&] {
    while (!interrupt.came()) { // again, should it come before the wait
      pthread_kill(waiting, SIGINT);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pthread_kill(waiting, SIGINT);
  });
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), -1);
  EXPECT_EQ(errno, EINTR);
  sender.join();
  close(ends[0]);
  close(ends[1]);
}

TEST(Interrupt, LeavesTheOldHandlerBehind) {
  struct sigaction before = {};
  sigaction(SIGINT, nullptr, &before);
  { const Interrupt interrupt; }
  struct sigaction after = {};
  sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

} // namespace
} // namespace palimpsest
