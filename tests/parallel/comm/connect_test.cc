#include <palimpsest/parallel/comm/connect.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/rendezvous.h>
#include <palimpsest/tests/parallel/comm/conformance.h>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

extern char** environ;

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;
using Milliseconds = std::chrono::milliseconds;

int free_port() {
  return meet({.address = "127.0.0.1", .serve = true}).port;
}

WorldSettings settings_of(int rank, int size, int port) {
  return {
      .rank = rank,
      .world_size = size,
      .address = "127.0.0.1",
      .port = port,
      .startup_timeout = std::chrono::seconds(30),
      .heartbeat = Milliseconds(50)};
}

/// Runs ranks as threads; what each one's body says, or its error.
std::vector<std::string> on_ranks(int size, const std::function<std::string(int rank)>& body) {
  std::vector<std::string> results(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        results[rank] = body(rank);
      } catch (const Error& error) {
        results[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

/// The sum of all ranks' numbers plus one.
std::string sum_over(Communicator& comm) {
  at::Tensor sum = at::full({1}, comm.rank() + 1.0);
  comm.all_reduce(sum, ReduceOp::kSum).wait();
  return std::to_string(static_cast<int>(sum.item<float>()));
}

TEST(Connect, AWorldOfOneNeedsNobody) {
  const std::unique_ptr<Communicator> world = connect({});
  EXPECT_EQ(world->size(), 1);
  EXPECT_EQ(sum_over(*world), "1");
  EXPECT_EQ(world->description(), "one rank, world of 1");
}

TEST(Connect, RanksMeetOverTheStoreOfRankZero) {
  const int port = free_port();
  EXPECT_THAT(
      on_ranks(3, [&](int rank) { return sum_over(*connect(settings_of(rank, 3, port))); }),
      Each("6"));
}

TEST(Connect, RanksMeetOverALaunchersStoreAlsoWhenRestarted) {
  const Store launcher = meet({.address = "127.0.0.1", .serve = true});
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(
        on_ranks(
            2,
            [&](int rank) {
              WorldSettings settings = settings_of(rank, 2, launcher.port);
              settings.agent_store = true;
              settings.attempt = attempt;
              return sum_over(*connect(settings));
            }),
        Each("3"));
  }
}

TEST(Connect, ManyJobsAtOnceKeepToThemselves) {
  std::vector<std::thread> jobs;
  for (int job = 0; job < 6; ++job) {
    const int size = 2 + job % 3;
    jobs.emplace_back([size, port = free_port()] {
      EXPECT_THAT(
          on_ranks(
              size, [&](int rank) { return sum_over(*connect(settings_of(rank, size, port))); }),
          Each(std::to_string(size * (size + 1) / 2)));
    });
  }
  for (std::thread& job : jobs) {
    job.join();
  }
}

TEST(Connect, ASecondJobAtTheSamePortIsTold) {
  const int port = free_port();
  std::vector<std::string> second;
  on_ranks(2, [&](int rank) {
    const auto world = connect(settings_of(rank, 2, port));
    if (rank == 0) {
      second =
          on_ranks(2, [&](int other) { return sum_over(*connect(settings_of(other, 2, port))); });
    }
    world->barrier().wait();
    return "";
  });
  EXPECT_THAT(second, SizeIs(2));
  EXPECT_THAT(second[0], HasSubstr("port " + std::to_string(port) + " of 127.0.0.1 is in use"));
  EXPECT_THAT(second[1], HasSubstr("rank 1 has already come"));
}

TEST(Connect, RanksThatDoNotComeAreNamed) {
  const int port = free_port();
  const auto errors = on_ranks(2, [&](int rank) {
    WorldSettings settings = settings_of(rank * 2, 4, port);
    settings.startup_timeout = Milliseconds(400);
    return sum_over(*connect(settings));
  });
  EXPECT_THAT(errors[0], HasSubstr("ranks 1, 3 did not come to 127.0.0.1:"));
  EXPECT_THAT(errors[0], HasSubstr("within 0.4 s, 2 of 4 ranks did"));
}

TEST(Connect, SettingsThatCannotBeServedAreRefused) {
  const auto refused = [](const WorldSettings& settings, const std::string& why) {
    EXPECT_THAT([&] { connect(settings); }, ThrowsMessage<UserError>(HasSubstr(why)));
  };
  refused({.backend = "ucx"}, "backend 'ucx' is unknown; give one of auto, gloo, in_process, mpi");
  refused({.rank = 4, .world_size = 4}, "rank 4 of 4 is no rank");
  refused({.world_size = 2, .backend = "in_process"}, "one rank per process, this world has 2");
  for (const int rank : {0, 1}) {
    for (const int port : {-1, 0, 65536}) {
      refused(
          {.rank = rank, .world_size = 2, .backend = "gloo", .address = "node-0", .port = port},
          fmt::format(
              "2 ranks over gloo need an address and a port from 1 to 65535 where rank 0 can be "
              "reached, not 'node-0:{}': set MASTER_ADDR and MASTER_PORT",
              port));
    }
    refused({.rank = rank, .world_size = 2, .port = 29500}, "not ':29500': set MASTER_ADDR");
  }
  refused({.world_size = 2, .backend = "mpi"}, "an MPI launcher");
  refused({.world_size = 2, .backend = "nccl"}, "this run's are on the CPU");
}

TEST(Connect, CheckedWorldsCompareOperations) {
  const int port = free_port();
  const auto errors = on_ranks(2, [&](int rank) {
    WorldSettings settings = settings_of(rank, 2, port);
    settings.checked = true;
    const auto world = connect(settings);
    world->all_reduce(at::zeros({rank + 1}), ReduceOp::kSum).wait();
    return "no error";
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 calls all_reduce (sum) of [2] Float")));
}

// Rank 0 works for several times the timeout within what all have declared; then rank 1 sleeps, and
// nobody has.
TEST(Connect, DeclaredLongWorkIsWaitedForAndAHungRankIsNot) {
  const int port = free_port();
  const auto start = std::chrono::steady_clock::now();
  const auto results = on_ranks(3, [&](int rank) {
    WorldSettings settings = settings_of(rank, 3, port);
    settings.timeout = Milliseconds(400);
    settings.status = std::make_shared<RankStatus>();
    const auto world = connect(settings);
    {
      const ScopedLongWork work(*settings.status, "saving a checkpoint");
      if (rank == 0) {
        std::this_thread::sleep_for(Milliseconds(1500));
      }
      world->barrier().wait();
    }
    if (rank == 1) {
      settings.status->set_place({.phase = "forward block 3", .step = 3, .operation = 12});
      std::this_thread::sleep_for(Milliseconds(2500));
    }
    world->barrier().wait();
    return "no error";
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(9));
  EXPECT_THAT(
      results,
      Each(AllOf(
          HasSubstr("barrier 2 of 'world' (gloo, 3 ranks)"),
          HasSubstr("rank 1 has not come to it: it lives, at forward block 3 of step 3 "
                    "(operation 12)"))));
}

TEST(Connect, ATransferNamesItsPeer) {
  const int port = free_port();
  const auto results = on_ranks(2, [&](int rank) {
    WorldSettings settings = settings_of(rank, 2, port);
    settings.timeout = Milliseconds(100);
    settings.status = std::make_shared<RankStatus>();
    const auto world = connect(settings);
    if (rank == 1) {
      settings.status->set_place({.phase = "saving"});
      std::this_thread::sleep_for(Milliseconds(1000));
      return std::string();
    }
    world->receive(at::zeros({3}), 1).wait();
    return std::string("no error");
  });
  EXPECT_THAT(
      results[0],
      AllOf(HasSubstr("receive from rank 1 of 'world'"), HasSubstr("rank 1 lives, at saving")));
}

// One rank of a world of its own process: sums for ever, within declared long work of all, until
// something ends it.
TEST(ConnectRank, DISABLED_RunsUntilAnError) {
  const char* const rank = std::getenv("PALIMPSEST_TEST_RANK");
  ASSERT_NE(rank, nullptr);
  WorldSettings settings =
      settings_of(std::atoi(rank), 3, std::atoi(std::getenv("PALIMPSEST_TEST_PORT")));
  settings.timeout = std::chrono::seconds(2);
  settings.status = std::make_shared<RankStatus>();
  const ScopedLongWork work(*settings.status, "saving a checkpoint");
  const std::string file = std::string(std::getenv("PALIMPSEST_TEST_OUTPUT")) + rank;
  try {
    const auto world = connect(settings);
    while (true) {
      sum_over(*world);
      std::ofstream(file + ".running") << "yes";
    }
  } catch (const EnvironmentError& error) {
    std::ofstream(file) << error.what();
  }
}

std::string read(const std::string& file) {
  std::ifstream stream(file);
  return (std::ostringstream() << stream.rdbuf()).str();
}

/// A rank that is killed or stopped, as a process, is named by all others.
void expect_named(int signal) {
  const std::string output = ::testing::TempDir() + "connect_" + std::to_string(::getpid()) + "_";
  const std::string port = std::to_string(free_port());
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    std::remove((output + std::to_string(rank)).c_str());
    std::remove((output + std::to_string(rank) + ".running").c_str());
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("PALIMPSEST_TEST_RANK", std::to_string(rank).c_str(), 1);
      ::setenv("PALIMPSEST_TEST_PORT", port.c_str(), 1);
      ::setenv("PALIMPSEST_TEST_OUTPUT", output.c_str(), 1);
      ::execl(
          "/proc/self/exe",
          "test",
          "--gtest_filter=ConnectRank.*",
          "--gtest_also_run_disabled_tests",
          "--gtest_brief=1",
          nullptr);
      ::_exit(127);
    }
    ranks.push_back(child);
  }
  for (int i = 0; i < 3000 && read(output + "2.running").empty(); ++i) {
    std::this_thread::sleep_for(Milliseconds(10));
  }
  const auto start = std::chrono::steady_clock::now();
  ::kill(ranks[2], signal);
  for (const int rank : {0, 1}) {
    int status = 0;
    ::waitpid(ranks[rank], &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_THAT(read(output + std::to_string(rank)), HasSubstr("rank 2 gives no sign of life"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  ::kill(ranks[2], SIGKILL);
  ::waitpid(ranks[2], nullptr, 0);
}

TEST(Connect, AKilledRankIsNamedByAllOthers) {
  expect_named(SIGKILL);
}

// Its connections stay, so that only the time limit finds it: what the others have declared, and
// what it has, must not lift that.
TEST(Connect, AStoppedRankIsNamedByAllOthersAlsoWithinLongWork) {
  expect_named(SIGSTOP);
}

} // namespace
} // namespace palimpsest
