#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/spawn.h>
#include <palimpsest/tests/launcher/launch/launch_testing.h>

#include <gmock/gmock.h>

#include <poll.h>

namespace palimpsest {
namespace {

using namespace std::chrono_literals;

int status_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(Spawn, RunsTheProgramWithItsEnvironment) {
  const pid_t child = spawn({"/bin/sh", "-c", "exit $CODE"}, {{"CODE", "9"}}, SIGKILL, [] {});
  EXPECT_EQ(WEXITSTATUS(status_of(child)), 9);
}

TEST(Spawn, LeadsItsOwnGroupWithSignalsUnblocked) {
  sigset_t term;
  sigset_t before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, &before);
  const pid_t child = spawn({"/bin/sleep", "20"}, {}, SIGKILL, [] {});
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(getpgid(child), child);
  kill(-child, SIGTERM);
  EXPECT_EQ(WTERMSIG(status_of(child)), SIGTERM);
}

TEST(Spawn, WhatCannotBeRunEndsWith127) {
  const auto quiet = [] { close(2); };
  EXPECT_EQ(WEXITSTATUS(status_of(spawn({"/nonexistent"}, {}, SIGKILL, quiet))), 127);
  const pid_t child = spawn({"/bin/true"}, {}, SIGKILL, [&] {
    quiet();
    throw EnvironmentError("no");
  });
  EXPECT_EQ(WEXITSTATUS(status_of(child)), 127);
}

TEST(Spawn, AnEndIsAShellsExitCode) {
  const auto code_of = [](const char* script) {
    return exit_code_of(status_of(spawn({"/bin/sh", "-c", script}, {}, SIGKILL, [] {})));
  };
  EXPECT_EQ(code_of("exit 0"), 0);
  EXPECT_EQ(code_of("exit 75"), 75);
  EXPECT_EQ(code_of("kill -9 $$"), 137);
}

TEST(Spawn, EndsWithItsParent) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const pid_t child = spawn({"/bin/sleep", "20"}, {}, SIGKILL, [] {});
    _exit(write(fds[1], &child, sizeof child) == sizeof child ? 0 : 1);
  }
  pid_t child = 0;
  ASSERT_EQ(read(fds[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  EXPECT_EQ(WEXITSTATUS(status_of(parent)), 0);
  const auto state = [&] {
    const std::string stat = testing::text_of("/proc/" + std::to_string(child) + "/stat");
    return stat.empty() ? 'X' : stat[stat.rfind(')') + 2];
  };
  EXPECT_TRUE(testing::eventually(5s, [&] { return state() == 'X' || state() == 'Z'; }));
  close(fds[0]);
  close(fds[1]);
}

TEST(SignalQueue, TurnsSignalsIntoData) {
  const SignalQueue queue({SIGUSR1, SIGTERM});
  EXPECT_EQ(queue.next(), 0);
  std::raise(SIGUSR1);
  pollfd readable = {.fd = queue.fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&readable, 1, 0), 1);
  pid_t sender = 0;
  EXPECT_EQ(queue.next(&sender), SIGUSR1);
  EXPECT_EQ(sender, getpid());
  EXPECT_EQ(queue.next(), 0);
}

TEST(SignalQueue, WhatWasIgnoredStaysIgnored) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const SignalQueue queue({SIGHUP});
    std::raise(SIGHUP);
    EXPECT_EQ(queue.next(), 0);
  }
  std::signal(SIGHUP, SIG_DFL);
}

TEST(SignalQueue, SeesChildrenEvenWhereTheyWereIgnored) {
  std::signal(SIGCHLD, SIG_IGN);
  const SignalQueue queue({SIGCHLD});
  const pid_t child = spawn({"/bin/true"}, {}, SIGKILL, [] {});
  EXPECT_TRUE(testing::eventually(5s, [&] { return queue.next() == SIGCHLD; }));
  EXPECT_EQ(WEXITSTATUS(status_of(child)), 0);
}

} // namespace
} // namespace palimpsest
