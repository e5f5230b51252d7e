#include <palimpsest/launcher/launch/lifeline.h>
#include <palimpsest/tests/launcher/launch/launch_testing.h>

#include <gmock/gmock.h>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

pid_t sleeping_child() {
  const pid_t child = fork();
  if (child == 0) {
    std::this_thread::sleep_for(20s);
    _exit(0);
  }
  return child;
}

void end(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(LaunchersOf, WhoseEndIsOurs) {
  RankEnvironment ranks;
  EXPECT_THAT(launchers_of(ranks), IsEmpty()); // a shell's end is not ours
  ranks.parent_is_launcher = true;
  EXPECT_THAT(launchers_of(ranks), ElementsAre(getppid()));
  ranks.launcher_pid = getppid();
  EXPECT_THAT(launchers_of(ranks), ElementsAre(getppid()));
  ranks.launcher_pid = getpid(); // with a supervisor in between
  EXPECT_THAT(launchers_of(ranks), ElementsAre(getppid(), getpid()));
}

TEST(ProcessWatch, ReturnsTheOneThatEnded) {
  const pid_t a = sleeping_child();
  const pid_t b = sleeping_child();
  const ProcessWatch watch({a, b});
  std::thread killer([&] {
    std::this_thread::sleep_for(20ms);
    kill(b, SIGKILL);
  });
  EXPECT_EQ(watch.wait(-1), b);
  killer.join();
  end(a);
  waitpid(b, nullptr, 0);
}

TEST(ProcessWatch, AProcessThatIsGoneHasEnded) {
  const pid_t child = sleeping_child();
  end(child);
  EXPECT_EQ(ProcessWatch({child}).wait(-1), child);
}

TEST(ProcessWatch, CanBeWoken) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  ASSERT_EQ(write(fds[1], "x", 1), 1);
  EXPECT_EQ(ProcessWatch({getppid()}).wait(fds[0]), 0);
  close(fds[0]);
  close(fds[1]);
}

TEST(Lifeline, EndsWithItsLauncher) {
  const pid_t launcher = sleeping_child();
  const pid_t rank = fork();
  if (rank == 0) {
    const Lifeline lifeline({launcher});
    std::this_thread::sleep_for(20s);
    _exit(0);
  }
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(waitpid(rank, nullptr, WNOHANG), 0); // it lives as long as the launcher does
  const auto begin = std::chrono::steady_clock::now();
  end(launcher);
  int status = 0;
  ASSERT_EQ(waitpid(rank, &status, 0), rank);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST(Lifeline, LetsGoWhenDestroyed) {
  const pid_t launcher = sleeping_child();
  const pid_t rank = fork();
  if (rank == 0) {
    { const Lifeline lifeline({launcher}); }
    end(launcher);
    std::this_thread::sleep_for(100ms);
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(rank, &status, 0), rank);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  end(launcher);
}

TEST(Lifeline, WatchesNothingWithoutLaunchers) {
  const Lifeline lifeline({});
}

} // namespace
} // namespace palimpsest
