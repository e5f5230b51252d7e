#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/stop_request.h>

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

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
  std::raise(SIGTERM); // any number of them: only SIGINT means impatience
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

/// How a child ends that gets two SIGINTs, `gap` apart.
int status_after_two(std::chrono::milliseconds gap) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    const StopRequest stop;
    std::raise(SIGINT);
    std::this_thread::sleep_for(gap);
    std::raise(SIGINT);
    _exit(stop.requested() ? kStoppedExitCode : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(StopRequest, ASecondInterruptEndsTheProcessUnlessItIsAnEcho) {
  const int echo = status_after_two(0ms);
  ASSERT_TRUE(WIFEXITED(echo));
  EXPECT_EQ(WEXITSTATUS(echo), kStoppedExitCode);
  const int later = status_after_two(600ms);
  ASSERT_TRUE(WIFSIGNALED(later));
  EXPECT_EQ(WTERMSIG(later), SIGINT);
}

TEST(StopRequest, ItsExitCodeIsNoOther) {
  EXPECT_EQ(kStoppedExitCode, 75); // documented
}

} // namespace
} // namespace palimpsest
