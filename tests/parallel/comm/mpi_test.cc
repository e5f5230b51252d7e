// Covers: parallel/comm/no_mpi.cc
// These tests need ranks that an MPI launcher started: ctest runs this binary under mpirun with 1
// to 5 of them.
#include <palimpsest/parallel/comm/mpi.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/connect.h>
#include <palimpsest/parallel/comm/engine_communicator.h>
#include <palimpsest/tests/parallel/comm/conformance.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <thread>

namespace palimpsest {
namespace {

std::unique_ptr<Communicator> mpi_communicator(const CommSettings& settings, int largest_count) {
  const MpiWorld world = mpi_world(largest_count);
  std::vector<int> everybody(world.size);
  std::iota(everybody.begin(), everybody.end(), 0);
  return engine_communicator(
      world.engine,
      {.name = "world", .ranks = everybody, .rank = world.rank},
      settings,
      std::make_shared<Heartbeat>(world.rank, std::make_shared<RankStatus>()));
}

/// The one world that the launcher made, with MPI's own counts and with small ones, which cut all
/// that is larger into pieces.
std::vector<TestWorld> worlds_of_mpi() {
  const char* const launched = std::getenv("PALIMPSEST_TEST_MPI_RANKS");
  std::vector<TestWorld> worlds;
  for (const int largest_count : {std::numeric_limits<int>::max(), 1000}) {
    TestWorld world{.engine = "mpi", .survives_failure = false};
    if (!has_mpi()) {
      world.skip = "this build has no MPI";
    } else if (launched == nullptr) {
      world.skip = "no MPI launcher started this test";
    } else {
      world.size = std::atoi(launched);
      world.run = [=](const CommSettings& settings, const RankBody& body) {
        const auto comm = mpi_communicator(settings, largest_count);
        ASSERT_EQ(comm->size(), world.size);
        body(*comm);
      };
    }
    worlds.push_back(std::move(world));
  }
  return worlds;
}

INSTANTIATE_TEST_SUITE_P(
    Mpi,
    Conformance,
    ::testing::ValuesIn(worlds_of_mpi()),
    [](const ::testing::TestParamInfo<TestWorld>& world) {
      return world.index == 0 ? "counts_of_mpi" : "small_counts";
    });

// With heartbeats, over MPI's own way to meet: rank 0 works long, and says so.
TEST(MpiConnect, DeclaredLongWorkIsWaitedFor) {
  const char* const launched = std::getenv("PALIMPSEST_TEST_MPI_RANKS");
  if (!has_mpi() || launched == nullptr || std::atoi(launched) != 2) {
    GTEST_SKIP() << "needs two ranks that an MPI launcher started";
  }
  const auto status = std::make_shared<RankStatus>();
  const auto world = connect(
      {.rank = mpi_world().rank,
       .world_size = std::atoi(launched),
       .mpi_launched = true,
       .timeout = std::chrono::milliseconds(300),
       .heartbeat = std::chrono::milliseconds(50),
       .status = status});
  EXPECT_THAT(world->description(), ::testing::HasSubstr("mpi"));
  if (world->rank() == 0) {
    const ScopedLongWork work(*status, "saving");
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  }
  world->barrier().wait();
}

TEST(MpiConnect, ALauncherOfAnotherMpiIsTold) {
  const char* const launched = std::getenv("PALIMPSEST_TEST_MPI_RANKS");
  if (!has_mpi() || launched == nullptr) {
    GTEST_SKIP() << "needs ranks that an MPI launcher started";
  }
  EXPECT_THAT(
      [&] { connect({.rank = 0, .world_size = std::atoi(launched) + 1, .mpi_launched = true}); },
      ::testing::ThrowsMessage<UserError>(
          ::testing::HasSubstr("they belong to different MPI installations")));
}

// Ends its job with an error on purpose: ctest runs it apart and looks at what all ranks print.
TEST(MpiFailure, DISABLED_ARankThatSleepsIsNamed) {
  const auto status = std::make_shared<RankStatus>();
  const auto world = connect(
      {.rank = mpi_world().rank,
       .world_size = std::atoi(std::getenv("PALIMPSEST_TEST_MPI_RANKS")),
       .mpi_launched = true,
       .timeout = std::chrono::milliseconds(300),
       .heartbeat = std::chrono::milliseconds(50),
       .status = status});
  if (world->rank() == 1) {
    status->set_place({.phase = "forward block 3", .step = 7});
    std::this_thread::sleep_for(std::chrono::seconds(60));
  }
  world->barrier().wait();
}

TEST(Mpi, ABuildWithoutItSaysSo) {
  if (has_mpi()) {
    GTEST_SKIP() << "this build has MPI";
  }
  EXPECT_THROW(mpi_world(), UserError);
}

} // namespace
} // namespace palimpsest
