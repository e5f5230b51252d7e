// Covers: processes.cc supervisor.cc
#include <palimpsest/launcher/launch/job.h>
#include <palimpsest/launcher/launch/mpirun.h>
#include <palimpsest/launcher/launch/port.h>
#include <palimpsest/launcher/launch/stop_request.h>
#include <palimpsest/tests/launcher/launch/launch_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <pty.h>

#include <random>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::eventually;
using testing::full_tests;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessFixture;
using testing::Words;
using namespace std::chrono_literals;

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  return text.substr(text.rfind('\n', end) + 1, end - text.rfind('\n', end));
}

/// Each test under both ways to start ranks.
class Launch : public ProcessFixture, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    ProcessFixture::SetUp();
    if (GetParam() && find_mpirun(current_environment()).kind == MpiKind::kNone) {
      GTEST_SKIP() << "no mpirun on this machine";
    }
  }
  Words command(int ranks, const Words& more) const {
    Words words = {RANK_PROGRAM, "launch", std::to_string(ranks), (folder_ / "logs").string()};
    if (GetParam()) {
      words.push_back("--mpirun");
    }
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  pid_t launch(int ranks, const Words& more) {
    return start(command(ranks, more));
  }
  std::optional<int> run(int ranks, const Words& more) {
    return wait_for(launch(ranks, more));
  }
  /// mpirun takes a second and more to end a job: less of that unless all is asked for.
  bool thorough() const {
    return !GetParam() || full_tests();
  }
};

TEST_P(Launch, RanksKnowTheirPlaces) {
  EXPECT_EQ(run(3, {"tell"}), 0) << err();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(
        log(rank), HasSubstr(fmt::format("rank {} of 3, local {} of 3, port ", rank, rank)));
    EXPECT_THAT(log(rank), HasSubstr(GetParam() ? "by Open MPI" : "by torchrun"));
  }
  EXPECT_THAT(out(), HasSubstr("rank 0 of 3"));
  EXPECT_THAT(out(), Not(HasSubstr("rank 1 of 3")));
}

TEST_P(Launch, CodeOfTheRankThatFailedFirst) {
  EXPECT_EQ(run(2, {"1:exit=3", "sleep=0.3"}), 3);
  EXPECT_EQ(run(3, {"ignore", "2:signal=9", "sleep=0.3"}), 137);
  if (thorough()) {
    EXPECT_EQ(run(2, {"sleep=0.1", "0:exit=2", "sleep=0.3"}), 2);
    EXPECT_EQ(run(2, {"0:sleep=0.3", "1:exit=70"}), 70);
    EXPECT_EQ(run(2, {"1:signal=11", "sleep=0.3"}), 139);
    // A rank that lost its peer says so at once; the peer is what failed.
    EXPECT_EQ(run(2, {"0:sleep=0.1", "0:exit=1", "1:sleep=0.2", "1:signal=9"}), 137);
  }
}

// Ranks that end alike, and the one that has the word last: it is quoted, not the first one's silence.
TEST_P(Launch, TheRankThatSaysWhyIsQuoted) {
  if (!thorough()) {
    GTEST_SKIP() << "PALIMPSEST_FULL=1 runs it";
  }
  const Words late = {"1:exit=2", "2:exit=2", "sleep=0.2", "error=the config is wrong", "exit=2"};
  ASSERT_EQ(run(3, late), 2);
  EXPECT_THAT(err(), AllOf(HasSubstr("rank 0 of 3"), HasSubstr("what it printed is above")));
  EXPECT_THAT(err(), Not(HasSubstr("printed nothing")));
  ASSERT_EQ(run(2, {"1:exit=3", "sleep=0.2", "error=something else", "exit=2"}), 3);
  EXPECT_THAT(err(), AllOf(HasSubstr("rank 1 of 2"), HasSubstr("it printed nothing")));
}

TEST_P(Launch, OneFailureEndsRanksThatWouldGoOnForEver) {
  if (!thorough()) {
    GTEST_SKIP() << "PALIMPSEST_FULL=1 runs it";
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run(3, {"ignore", "child", "1:exit=3", "sleep=1000"}), 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  EXPECT_TRUE(all_gone(1s));
}

TEST_P(Launch, LastWordsNameRankHostCodeAndTextOnce) {
  if (!thorough()) {
    GTEST_SKIP() << "PALIMPSEST_FULL=1 runs it";
  }
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  ASSERT_EQ(run(2, {"1:print=all is well", "1:error=no such file: x", "1:exit=3", "sleep=0.3"}), 3);
  EXPECT_THAT(
      err(), AllOf(HasSubstr("rank 1 of 2"), HasSubstr(host), HasSubstr("ended with exit code 3")));
  EXPECT_EQ(last_line(err()), "no such file: x");
  EXPECT_EQ(count_of(out() + err(), "no such file"), 1);
}

TEST_P(Launch, TextThatIsOnTheScreenIsNotPrintedAgain) {
  if (!thorough()) {
    GTEST_SKIP() << "PALIMPSEST_FULL=1 runs it";
  }
  ASSERT_EQ(run(2, {"error=no such file: x", "0:exit=3", "sleep=0.3"}), 3);
  EXPECT_EQ(count_of(out() + err(), "no such file"), 1);
  EXPECT_THAT(last_line(err()), AllOf(HasSubstr("rank 0 of 2"), HasSubstr("is above")));
  ASSERT_EQ(run(2, {"error=no such file: x", "1:sleep=0.1", "1:signal=9", "sleep=0.3"}), 137);
  EXPECT_EQ(count_of(out() + err(), "no such file"), 1);
  EXPECT_THAT(last_line(err()), HasSubstr("rank 1 of 2"));
  EXPECT_THAT(
      last_line(err()),
      ContainsRegex(
          "was ended by signal 9 \\(Killed\\), possibly for want of memory: it held up to [1-9]"));
}

TEST_P(Launch, OutputAndErrorsOfRank0StayApart) {
  ASSERT_EQ(run(2, {"print=result", "error=warning"}), 0);
  EXPECT_EQ(out(), "result\n");
  EXPECT_EQ(err(), "warning\n");
  EXPECT_THAT(log(0), AllOf(HasSubstr("result\n"), HasSubstr("warning\n")));
  EXPECT_THAT(log(1), AllOf(HasSubstr("result\n"), HasSubstr("warning\n")));
}

TEST_P(Launch, SignalsAskAllRanksToStop) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    const pid_t job = launch(3, {pid_step(), "stop=0.1", "2:stop=0.5"});
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_GT(rank_pid(rank), 0);
    }
    kill(job, signal);
    EXPECT_EQ(wait_for(job), kStoppedExitCode) << err();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(log(rank), "saved\n");
    }
    EXPECT_THAT(last_line(err()), HasSubstr("have stopped on request"));
    std::filesystem::remove_all(folder_ / "logs");
    for (int rank = 0; rank < 3; ++rank) {
      std::filesystem::remove(folder_ / std::to_string(rank));
    }
  }
}

TEST_P(Launch, AWrapperThatSignalsTwiceAsksOnce) {
  const pid_t job = launch(2, {pid_step(), "stop=0.2"});
  ASSERT_GT(rank_pid(0), 0);
  ASSERT_GT(rank_pid(1), 0);
  kill(job, SIGTERM);
  std::this_thread::sleep_for(50ms);
  kill(job, SIGTERM);
  EXPECT_EQ(wait_for(job), kStoppedExitCode) << err();
}

TEST_P(Launch, ASecondSignalEndsAtOnce) {
  const pid_t job = launch(2, {pid_step(), "ignore", "sleep=1000"});
  ASSERT_GT(rank_pid(0), 0);
  ASSERT_GT(rank_pid(1), 0);
  kill(job, SIGTERM);
  std::this_thread::sleep_for(600ms);
  kill(job, SIGINT);
  EXPECT_EQ(wait_for(job, 5s), 128 + SIGINT);
  EXPECT_TRUE(all_gone(1s));
}

TEST_P(Launch, RanksThatDoNotStopInTimeAreKilled) {
  if (!thorough()) {
    GTEST_SKIP() << "PALIMPSEST_FULL=1 runs it";
  }
  const pid_t job = launch(2, {"--grace=1", pid_step(), "0:stop=0", "ignore", "sleep=1000"});
  ASSERT_GT(rank_pid(0), 0);
  ASSERT_GT(rank_pid(1), 0);
  kill(job, SIGTERM);
  EXPECT_EQ(wait_for(job), 128 + SIGKILL);
  EXPECT_THAT(last_line(err()), HasSubstr("rank 1 did not end within 1 s"));
}

TEST_P(Launch, ALauncherThatIsKilledTakesAllAlong) {
  for (const char* step : {"sleep=1000", "ignore"}) {
    const pid_t job = launch(3, {pid_step(), step, "child", "sleep=1000"});
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_GT(rank_pid(rank), 0);
    }
    kill(job, SIGKILL);
    EXPECT_EQ(wait_for(job), 128 + SIGKILL);
    EXPECT_TRUE(all_gone()) << ::testing::PrintToString(left());
    for (int rank = 0; rank < 3; ++rank) {
      std::filesystem::remove(folder_ / std::to_string(rank));
    }
  }
}

// What watches over a rank is killed, so nothing tells of the rank's end but its launcher's own eyes.
TEST_P(Launch, ARankWhoseSupervisorIsKilledEndsTheJobToo) {
  const pid_t job = launch(2, {pid_step(), "ignore", "sleep=1000"});
  ASSERT_GT(rank_pid(0), 0);
  const pid_t rank = rank_pid(1);
  ASSERT_GT(rank, 0);
  std::istringstream stat(testing::text_of(fmt::format("/proc/{}/stat", rank)));
  std::string skipped;
  pid_t supervisor = 0;
  stat >> skipped >> skipped >> skipped >> supervisor; // process, name, state, parent
  ASSERT_GT(supervisor, 1);
  kill(supervisor, SIGKILL);
  EXPECT_EQ(wait_for(job), 137) << err();
  EXPECT_TRUE(all_gone()) << ::testing::PrintToString(left());
  EXPECT_THAT(err(), HasSubstr("rank 1"));
  EXPECT_THAT(err(), HasSubstr("signal 9"));
}

TEST_P(Launch, ALauncherThatIsKilledWhileItStartsLeavesNothing) {
  const int tries = full_tests() ? 50 : 4;
  for (int i = 0; i < tries; ++i) {
    const pid_t job = launch(3, {"ignore", "sleep=1000"});
    std::this_thread::sleep_for(i * 100ms / tries);
    kill(job, SIGKILL);
    EXPECT_EQ(wait_for(job), 128 + SIGKILL);
    ASSERT_TRUE(all_gone()) << ::testing::PrintToString(left());
  }
}

TEST_P(Launch, AnyRankKilledAtAnyTimeEndsTheJob) {
  std::minstd_rand random(7);
  const int tries = full_tests() ? 100 : 1;
  for (int i = 0; i < tries; ++i) {
    const pid_t job = launch(3, {pid_step(), "ignore", "child", "sleep=1000"});
    const int victim = static_cast<int>(random() % 3);
    const pid_t pid = rank_pid(victim);
    ASSERT_GT(pid, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
    const auto begin = std::chrono::steady_clock::now();
    kill(pid, SIGKILL);
    ASSERT_EQ(wait_for(job), 137) << err();
    EXPECT_THAT(last_line(err()), HasSubstr(fmt::format("rank {} of 3", victim)));
    ASSERT_TRUE(all_gone()) << ::testing::PrintToString(left());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    for (int rank = 0; rank < 3; ++rank) {
      std::filesystem::remove(folder_ / std::to_string(rank));
    }
  }
}

TEST_P(Launch, StartsAndEndsOverAndOver) {
  const int tries = full_tests() ? 50 : 3;
  for (int i = 0; i < tries; ++i) {
    const int code = i % 3 == 2 ? 3 : 0;
    ASSERT_EQ(run(2, {fmt::format("{}:exit={}", i % 2, code)}), code) << err();
    ASSERT_TRUE(all_gone(1s)) << ::testing::PrintToString(left());
  }
}

TEST_P(Launch, Rank0KeepsTheTerminal) {
  int terminal = -1;
  int screen = -1;
  winsize size = {.ws_row = 31, .ws_col = 97, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(openpty(&terminal, &screen, nullptr, nullptr, &size), 0);
  Environment environment = current_environment();
  environment[testing::kMarkVariable] = folder_.string();
  const pid_t job = spawn(command(2, {"tell"}), environment, SIGKILL, [&] {
    dup2(screen, 1);
    dup2(screen, 2);
  });
  EXPECT_EQ(wait_for(job), 0);
  char text[1024] = {};
  ASSERT_GT(read(terminal, text, sizeof text - 1), 0);
  EXPECT_THAT(text, HasSubstr("rank 0 of 2"));
  EXPECT_THAT(text, HasSubstr("terminal 1"));
  EXPECT_THAT(log(1), HasSubstr("terminal 0"));
  close(terminal);
  close(screen);
}

TEST_P(Launch, ABusyPortIsAnErrorThatNamesIt) {
  const ListeningSocket other(0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run(2, {fmt::format("--port={}", other.port())}), 2);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  EXPECT_THAT(err(), HasSubstr(fmt::format("port {}", other.port())));
}

INSTANTIATE_TEST_SUITE_P(Ways, Launch, ::testing::Bool(), [](const auto& way) {
  return way.param ? "Mpirun" : "OwnProcesses";
});

class Ranks : public ProcessFixture {};

TEST_F(Ranks, TwoJobsAtOnceMeetEachTheirOwn) {
  const int tries = full_tests() ? 10 : 2;
  for (int i = 0; i < tries; ++i) {
    std::vector<pid_t> jobs;
    for (const char* logs : {"a", "b"}) {
      jobs.push_back(start({RANK_PROGRAM, "launch", "3", (folder_ / logs).string(), "connect"}));
    }
    for (const pid_t job : jobs) {
      EXPECT_EQ(wait_for(job), 0) << err();
    }
    for (const char* logs : {"a", "b"}) {
      const std::string text = testing::text_of(folder_ / logs / "rank-0000.log");
      EXPECT_EQ(count_of(text, "met rank 1"), i + 1) << text;
      EXPECT_EQ(count_of(text, "met rank 2"), i + 1) << text;
    }
  }
}

TEST_F(Ranks, EndWithAnAgentThatIsKilled) {
  const pid_t agent = start({RANK_PROGRAM, "agent", "2", pid_step(), "ignore", "sleep=1000"});
  ASSERT_GT(rank_pid(0), 0);
  ASSERT_GT(rank_pid(1), 0);
  kill(agent, SIGKILL);
  EXPECT_EQ(wait_for(agent), 128 + SIGKILL);
  EXPECT_TRUE(all_gone()) << ::testing::PrintToString(left());
}

TEST_F(Ranks, UnderAUsersMpirun) {
  const MpiLauncher mpirun = find_mpirun(current_environment());
  if (mpirun.kind != MpiKind::kOpenMpi) {
    GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  }
  const auto command = [&](Words steps) {
    steps.insert(steps.begin(), {RANK_PROGRAM, "rank", pid_step()});
    return mpirun_command(mpirun, 2, steps);
  };
  const auto started = [&] {
    const bool both = rank_pid(0) > 0 && rank_pid(1) > 0;
    std::filesystem::remove(folder_ / "0");
    std::filesystem::remove(folder_ / "1");
    return both;
  };
  // Open MPI forwards SIGUSR1.
  pid_t job = start(command({"stop=0.1"}));
  ASSERT_TRUE(started());
  kill(job, SIGUSR1);
  EXPECT_EQ(wait_for(job), kStoppedExitCode) << err();
  if (full_tests()) {
    EXPECT_EQ(wait_for(start(command({"1:exit=3", "sleep=0.3"}))), 3);
    ASSERT_TRUE(started());
  }
  job = start(command({"ignore", "sleep=1000"}));
  ASSERT_TRUE(started());
  kill(job, SIGKILL);
  EXPECT_EQ(wait_for(job), 128 + SIGKILL);
  EXPECT_TRUE(all_gone()) << ::testing::PrintToString(left());
}

} // namespace
} // namespace palimpsest
