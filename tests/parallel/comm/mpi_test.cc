// Covers: parallel/comm/no_mpi.cc
// These tests need ranks that an MPI launcher started: ctest runs this binary under mpirun with 1
// to 5 of them.
#include <palimpsest/parallel/comm/mpi.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/engine_communicator.h>
#include <palimpsest/tests/parallel/comm/conformance.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

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

TEST(Mpi, ABuildWithoutItSaysSo) {
  if (has_mpi()) {
    GTEST_SKIP() << "this build has MPI";
  }
  EXPECT_THROW(mpi_world(), UserError);
}

} // namespace
} // namespace palimpsest
