#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/stop_request.h>

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

namespace palimpsest {
namespace {

using namespace std::chrono_literals;

TEST(StopRequest, EachSignalSetsTheFlagOnly) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    std::signal(signal, SIG_DFL); // a shell's background jobs begin with SIGINT ignored
    const StopRequest stop;
    EXPECT_FALSE(stop.requested());
    EXPECT_EQ(stop.signal(), 0);
    std::raise(signal);
    EXPECT_TRUE(stop.requested());
    EXPECT_EQ(stop.signal(), signal);
  }
}

TEST(StopRequest, TheFirstSignalIsTheReason) {
  const StopRequest stop;
  std::raise(SIGUSR1);
  std::raise(SIGTERM);
  EXPECT_EQ(stop.signal(), SIGUSR1);
}

TEST(StopRequest, HandlersAreThereForItsLifeOnly) {
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  { const StopRequest stop; }
  struct sigaction after {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(StopRequest, OnlyOneAtATime) {
  const StopRequest stop;
  EXPECT_THROW(StopRequest(), InternalError);
}

TEST(StopRequest, WhatWasIgnoredStaysIgnored) {
  std::signal(SIGINT, SIG_IGN);
  {
    const StopRequest stop;
    std::raise(SIGINT);
    EXPECT_FALSE(stop.requested());
  }
  std::signal(SIGINT, SIG_DFL);
}

/// How a child ends that gets two signals, `gap` apart.
int status_after_two(int first, int second, std::chrono::milliseconds gap) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    const StopRequest stop;
    std::raise(first);
    std::this_thread::sleep_for(gap);
    std::raise(second);
    _exit(stop.requested() ? kStoppedExitCode : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(StopRequest, ASecondOneEndsTheProcessUnlessItIsAnEcho) {
  for (const int first : {SIGTERM, SIGINT}) {
    for (const int second : {SIGTERM, SIGINT}) {
      SCOPED_TRACE(std::to_string(first) + ", then " + std::to_string(second));
      const int echo = status_after_two(first, second, 0ms);
      ASSERT_TRUE(WIFEXITED(echo));
      EXPECT_EQ(WEXITSTATUS(echo), kStoppedExitCode);
      const int later = status_after_two(first, second, second == SIGTERM ? 5100ms : 600ms);
      ASSERT_TRUE(WIFSIGNALED(later));
      EXPECT_EQ(WTERMSIG(later), second);
    }
  }
}

// What ends a job signals every process, whose launcher passes it on when it gets to run.
TEST(StopRequest, ASigtermSoonAfterTheFirstIsAnEcho) {
  const int echo = status_after_two(SIGTERM, SIGTERM, 1500ms);
  ASSERT_TRUE(WIFEXITED(echo));
  EXPECT_EQ(WEXITSTATUS(echo), kStoppedExitCode);
}

// A scheduler's warning may come at any time, and more than once.
TEST(StopRequest, AWarningIsNoSecondSignal) {
  for (const auto& [first, second] :
       {std::pair(SIGUSR1, SIGUSR1), std::pair(SIGTERM, SIGUSR1), std::pair(SIGUSR1, SIGTERM)}) {
    const int later = status_after_two(first, second, 600ms);
    ASSERT_TRUE(WIFEXITED(later)) << first << " " << second;
    EXPECT_EQ(WEXITSTATUS(later), kStoppedExitCode);
  }
}

TEST(StopRequest, ItsExitCodeIsNoOther) {
  EXPECT_EQ(kStoppedExitCode, 75); // documented
}

} // namespace
} // namespace palimpsest
