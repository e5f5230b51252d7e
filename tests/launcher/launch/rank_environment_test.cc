#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/rank_environment.h>

#include <gmock/gmock.h>

#include <cstdlib>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What the launchers set, as each documents it, for rank 5 of 8 on the second of two hosts.
const Environment kTorchrun = {
    {"RANK", "5"},
    {"WORLD_SIZE", "8"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"GROUP_RANK", "1"},
    {"MASTER_ADDR", "node1"},
    {"MASTER_PORT", "29500"},
    {"TORCHELASTIC_RUN_ID", "none"},
    {"TORCHELASTIC_RESTART_COUNT", "2"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Environment kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "5"},
    {"OMPI_COMM_WORLD_SIZE", "8"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
    {"OMPI_UNIVERSE_SIZE", "8"},
    {"PMIX_RANK", "5"},
    {"PMIX_NAMESPACE", "129630209"}};
const Environment kHydra = {
    {"PMI_RANK", "5"},
    {"PMI_SIZE", "8"},
    {"MPI_LOCALRANKID", "1"},
    {"MPI_LOCALNRANKS", "4"},
    {"PMI_FD", "9"}};
const Environment kSlurm = {
    {"SLURM_JOB_ID", "4711"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_PROCID", "5"},
    {"SLURM_NTASKS", "8"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "1"},
    {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
    {"SLURM_STEP_NODELIST", "node[01-02]"}};

Environment operator+(Environment a, const Environment& b) {
  for (const auto& [name, value] : b) {
    a[name] = value;
  }
  return a;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

std::string refusal(const Environment& environment, const RankFlags& flags = {}) {
  try {
    detect_rank(environment, flags);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_rank_5_of_8(const RankEnvironment& ranks) {
  EXPECT_EQ(ranks.rank, 5);
  EXPECT_EQ(ranks.world_size, 8);
  EXPECT_EQ(ranks.local_rank, 1);
  EXPECT_EQ(ranks.local_world_size, 4);
}

TEST(RankEnvironment, NothingMeansOneProcess) {
  const RankEnvironment ranks = detect_rank({{"PATH", "/bin"}, {"MASTER_ADDR", "left-over"}});
  EXPECT_EQ(ranks.how, RankSource::kSingle);
  EXPECT_EQ(ranks.rank, 0);
  EXPECT_EQ(ranks.world_size, 1);
  EXPECT_FALSE(ranks.mpi_launched);
  EXPECT_FALSE(ranks.parent_is_launcher);
}

TEST(RankEnvironment, Torchrun) {
  const RankEnvironment ranks = detect_rank(kTorchrun);
  expect_rank_5_of_8(ranks);
  EXPECT_EQ(ranks.how, RankSource::kTorchrun);
  EXPECT_EQ(ranks.address, "node1");
  EXPECT_EQ(ranks.port, 29500);
  EXPECT_TRUE(ranks.agent_store);
  EXPECT_EQ(ranks.attempt, 2);
  EXPECT_TRUE(ranks.parent_is_launcher);
  EXPECT_EQ(ranks.sources.at("rank"), "RANK=5");
  EXPECT_EQ(ranks.sources.at("port"), "MASTER_PORT=29500");
}

TEST(RankEnvironment, TorchrunWithoutTheAgentsStore) {
  EXPECT_FALSE(detect_rank(without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE")).agent_store);
  EXPECT_FALSE(
      detect_rank(kTorchrun + Environment{{"TORCHELASTIC_USE_AGENT_STORE", "False"}}).agent_store);
  EXPECT_THAT(
      refusal(kTorchrun + Environment{{"TORCHELASTIC_USE_AGENT_STORE", "yes"}}),
      HasSubstr("TORCHELASTIC_USE_AGENT_STORE=yes"));
  // The six variables alone may come from a script that ends before its ranks do.
  EXPECT_FALSE(detect_rank(without(kTorchrun, "TORCHELASTIC_RUN_ID")).parent_is_launcher);
}

TEST(RankEnvironment, EachMissingVariableOfTorchrunIsNamedWithThoseThere) {
  for (const char* missing : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    const std::string text = refusal(without(kTorchrun, missing));
    EXPECT_THAT(text, HasSubstr(std::string(", but ") + missing + " is not")) << missing;
    EXPECT_THAT(text, HasSubstr("MASTER_PORT=29500"));
  }
  const std::string text = refusal({{"WORLD_SIZE", "4"}});
  EXPECT_THAT(
      text,
      HasSubstr("WORLD_SIZE=4 is set, but RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, "
                "MASTER_PORT are not"));
}

TEST(RankEnvironment, MpiLaunchers) {
  const RankEnvironment open_mpi = detect_rank(kOpenMpi);
  expect_rank_5_of_8(open_mpi);
  EXPECT_EQ(open_mpi.how, RankSource::kOpenMpi);
  EXPECT_TRUE(open_mpi.mpi_launched);
  EXPECT_TRUE(open_mpi.parent_is_launcher);

  const RankEnvironment mpich = detect_rank(kHydra);
  expect_rank_5_of_8(mpich);
  EXPECT_EQ(mpich.how, RankSource::kMpich);
  EXPECT_TRUE(mpich.mpi_launched);

  const RankEnvironment intel = detect_rank(kHydra + Environment{{"I_MPI_MPIRUN", "mpirun"}});
  expect_rank_5_of_8(intel);
  EXPECT_EQ(intel.how, RankSource::kIntelMpi);
}

TEST(RankEnvironment, EachMissingVariableOfAnMpiLauncherIsNamed) {
  for (const char* missing :
       {"OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    EXPECT_THAT(refusal(without(kOpenMpi, missing)), HasSubstr(std::string(missing) + " is not"));
  }
  for (const char* missing : {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}) {
    EXPECT_THAT(refusal(without(kHydra, missing)), HasSubstr(std::string(missing) + " is not"));
  }
  EXPECT_THAT(refusal({{"PMIX_RANK", "0"}}), HasSubstr("PMIX_RANK=0"));
}

TEST(RankEnvironment, MeetingPointOfMpiRanks) {
  // On several hosts nobody says where rank 0 is.
  const RankEnvironment far = detect_rank(kOpenMpi);
  EXPECT_EQ(far.address, "");
  EXPECT_THAT(far.sources.at("address"), HasSubstr("set MASTER_ADDR"));
  // Hydra's names no job: there is no port that all could compute alike.
  const RankEnvironment hydra = detect_rank(without(kHydra, "PMIX_NAMESPACE"));
  EXPECT_EQ(hydra.port, 0);
  EXPECT_THAT(hydra.sources.at("port"), HasSubstr("set MASTER_PORT"));
  const Environment local = {
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "5"}};
  const RankEnvironment near = detect_rank(kOpenMpi + local);
  EXPECT_EQ(near.address, "127.0.0.1");
  EXPECT_GE(near.port, 10000);
  EXPECT_LT(near.port, 30000);
  // Other ranks derive the same, another job of the machine something else.
  EXPECT_EQ(
      detect_rank(
          kOpenMpi + local +
          Environment{
              {"OMPI_COMM_WORLD_RANK", "0"},
              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
              {"PMIX_RANK", "0"}})
          .port,
      near.port);
  EXPECT_NE(
      detect_rank(kOpenMpi + local + Environment{{"PMIX_NAMESPACE", "129630210"}}).port, near.port);
  // What the user says wins.
  const RankEnvironment said =
      detect_rank(kOpenMpi + Environment{{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "4000"}});
  EXPECT_EQ(said.address, "node7");
  EXPECT_EQ(said.port, 4000);
}

TEST(RankEnvironment, SlurmStep) {
  const RankEnvironment ranks = detect_rank(kSlurm);
  expect_rank_5_of_8(ranks);
  EXPECT_EQ(ranks.how, RankSource::kSlurm);
  EXPECT_FALSE(ranks.mpi_launched);
  EXPECT_EQ(ranks.address, "node01");
  EXPECT_THAT(ranks.sources.at("address"), HasSubstr("SLURM_STEP_NODELIST=node[01-02]"));
  EXPECT_THAT(ranks.sources.at("port"), HasSubstr("SLURM_JOB_ID=4711"));
  EXPECT_NE(ranks.port, detect_rank(kSlurm + Environment{{"SLURM_JOB_ID", "4712"}}).port);
  EXPECT_NE(ranks.port, detect_rank(kSlurm + Environment{{"SLURM_STEP_ID", "1"}}).port);
  // Uneven hosts: five tasks on the first, three on the second.
  const RankEnvironment uneven = detect_rank(
      kSlurm + Environment{{"SLURM_STEP_TASKS_PER_NODE", "5,3"}, {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(uneven.local_world_size, 3);
  // A step within a larger allocation.
  const RankEnvironment part =
      detect_rank(kSlurm + Environment{{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_NTASKS", "32"}});
  EXPECT_EQ(part.world_size, 8);
}

TEST(RankEnvironment, AnAllocationAloneIsOneProcess) {
  const Environment batch = {
      {"SLURM_JOB_ID", "4711"},
      {"SLURM_PROCID", "0"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_NTASKS", "8"},
      {"SLURM_JOB_NODELIST", "node[01-02]"}};
  EXPECT_EQ(detect_rank(batch).how, RankSource::kSingle);
  EXPECT_THAT(detect_rank(batch).sources.at("rank"), HasSubstr("SLURM_JOB_ID=4711"));
  // The batch script's and the interactive shell's own steps have special numbers.
  EXPECT_EQ(
      detect_rank(batch + Environment{{"SLURM_STEP_ID", "4294967291"}}).how, RankSource::kSingle);
  EXPECT_EQ(
      detect_rank(batch + Environment{{"SLURM_STEP_ID", "4294967290"}}).how, RankSource::kSingle);
}

TEST(RankEnvironment, IncompleteOrContradictorySlurmStepsAreRefused) {
  for (const char* missing :
       {"SLURM_LOCALID",
        "SLURM_NTASKS",
        "SLURM_NODEID",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_STEP_NODELIST",
        "SLURM_JOB_ID"}) {
    EXPECT_THAT(refusal(without(kSlurm, missing)), HasSubstr(std::string(missing) + " is not"));
  }
  EXPECT_THAT(
      refusal(kSlurm + Environment{{"SLURM_STEP_TASKS_PER_NODE", "4(x3)"}}),
      AllOf(HasSubstr("4(x3)"), HasSubstr("SLURM_NTASKS=8")));
  EXPECT_THAT(refusal(kSlurm + Environment{{"SLURM_NODEID", "2"}}), HasSubstr("SLURM_NODEID=2"));
}

TEST(RankEnvironment, SlurmWithPmi) {
  const RankEnvironment pmix = detect_rank(kSlurm + Environment{{"PMIX_RANK", "5"}});
  expect_rank_5_of_8(pmix);
  EXPECT_EQ(pmix.how, RankSource::kPmix);
  EXPECT_TRUE(pmix.mpi_launched);
  const RankEnvironment pmi2 =
      detect_rank(kSlurm + Environment{{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}});
  expect_rank_5_of_8(pmi2);
  EXPECT_TRUE(pmi2.mpi_launched);
  EXPECT_THAT(
      refusal(kSlurm + Environment{{"PMIX_RANK", "4"}}),
      AllOf(HasSubstr("PMIX_RANK=4"), HasSubstr("SLURM_PROCID=5")));
}

TEST(RankEnvironment, OrderOfSources) {
  const Environment all = kTorchrun + kOpenMpi + kSlurm;
  RankFlags flags;
  flags.rank = 1;
  flags.world_size = 2;
  flags.local_rank = 0;
  flags.address = "10.0.0.1";
  flags.port = 4000;
  EXPECT_EQ(detect_rank(all, flags).how, RankSource::kFlags);
  EXPECT_EQ(detect_rank(all).how, RankSource::kTorchrun);
  EXPECT_EQ(detect_rank(kOpenMpi + kSlurm).how, RankSource::kOpenMpi);
  EXPECT_EQ(detect_rank(kHydra + kSlurm).how, RankSource::kMpich);
  EXPECT_EQ(detect_rank(kSlurm).how, RankSource::kSlurm);
  // One torchrun per host under mpirun: the inner launcher's numbers differ and win.
  const Environment nested = kTorchrun +
      Environment{
          {"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  expect_rank_5_of_8(detect_rank(nested));
}

TEST(RankEnvironment, TwoMpiLaunchersThatContradictAreRefused) {
  EXPECT_EQ(detect_rank(kOpenMpi + kHydra).how, RankSource::kOpenMpi); // they agree
  EXPECT_THAT(
      refusal(kOpenMpi + kHydra + Environment{{"PMI_RANK", "0"}}),
      AllOf(HasSubstr("OMPI_COMM_WORLD_RANK=5"), HasSubstr("PMI_RANK=0")));
  EXPECT_THAT(
      refusal(kOpenMpi + Environment{{"PMIX_RANK", "1"}}),
      AllOf(HasSubstr("OMPI_COMM_WORLD_RANK=5"), HasSubstr("PMIX_RANK=1")));
}

TEST(RankEnvironment, WrongNumbersAreRefusedByName) {
  for (const char* value : {"", "x", "1x", "-1", "1.5", " 1", "99999999999", "0x1"}) {
    EXPECT_THAT(
        refusal(kTorchrun + Environment{{"RANK", value}}), HasSubstr(std::string("RANK=") + value));
    EXPECT_THAT(
        refusal(kOpenMpi + Environment{{"OMPI_COMM_WORLD_SIZE", value}}),
        HasSubstr(std::string("OMPI_COMM_WORLD_SIZE=") + value));
    EXPECT_THAT(
        refusal(kSlurm + Environment{{"SLURM_LOCALID", value}}),
        HasSubstr(std::string("SLURM_LOCALID=") + value));
  }
  for (const char* port : {"0", "65536", "http"}) {
    EXPECT_THAT(
        refusal(kTorchrun + Environment{{"MASTER_PORT", port}}),
        HasSubstr(std::string("MASTER_PORT=") + port));
  }
  EXPECT_THAT(refusal(kTorchrun + Environment{{"MASTER_ADDR", ""}}), HasSubstr("MASTER_ADDR"));
}

TEST(RankEnvironment, ContradictionsWithinASetNameBothSides) {
  const auto refused = [](const char* name, const char* value) {
    return refusal(kTorchrun + Environment{{name, value}});
  };
  EXPECT_THAT(refused("RANK", "8"), AllOf(HasSubstr("RANK=8"), HasSubstr("WORLD_SIZE=8")));
  EXPECT_THAT(refused("WORLD_SIZE", "0"), HasSubstr("WORLD_SIZE=0"));
  EXPECT_THAT(
      refused("LOCAL_RANK", "4"),
      AllOf(HasSubstr("LOCAL_RANK=4"), HasSubstr("LOCAL_WORLD_SIZE=4")));
  EXPECT_THAT(
      refused("LOCAL_WORLD_SIZE", "9"),
      AllOf(HasSubstr("LOCAL_WORLD_SIZE=9"), HasSubstr("WORLD_SIZE=8")));
  EXPECT_THAT(
      refusal(kTorchrun + Environment{{"RANK", "1"}, {"LOCAL_RANK", "2"}}),
      AllOf(HasSubstr("RANK=1"), HasSubstr("LOCAL_RANK=2")));
}

TEST(RankEnvironment, FlagsAreAllOrNone) {
  RankFlags flags;
  flags.rank = 3;
  flags.port = 4000;
  EXPECT_THAT(
      refusal({}, flags),
      HasSubstr("--rank, --master-port without --world-size, --local-rank, --master-address"));
  flags.world_size = 4;
  flags.local_rank = 3;
  flags.address = "localhost";
  const RankEnvironment ranks = detect_rank({}, flags);
  EXPECT_EQ(ranks.rank, 3);
  EXPECT_EQ(ranks.local_world_size, 4); // all ranks are on a loopback address's host
  EXPECT_EQ(ranks.port, 4000);
  EXPECT_FALSE(ranks.parent_is_launcher);
  flags.address = "node1";
  EXPECT_THAT(refusal({}, flags), HasSubstr("--local-rank=3")); // one rank a host, unless said
  flags.local_world_size = 4;
  EXPECT_EQ(detect_rank({}, flags).local_world_size, 4);
  flags.rank = 4;
  EXPECT_THAT(refusal({}, flags), AllOf(HasSubstr("--rank=4"), HasSubstr("--world-size=4")));
  flags.rank = -1;
  EXPECT_THAT(refusal({}, flags), HasSubstr("--rank=-1"));
  flags.rank = 0;
  flags.local_rank = 0;
  flags.port = 65536;
  EXPECT_THAT(refusal({}, flags), HasSubstr("--master-port=65536"));
}

TEST(RankEnvironment, WhatTheLauncherAdds) {
  const Environment launched =
      kTorchrun + Environment{{kLauncherPidVariable, "77"}, {kListenFdVariable, "9"}};
  EXPECT_EQ(detect_rank(launched).launcher_pid, 77);
  EXPECT_EQ(detect_rank(launched).listen_fd, -1); // rank 0's alone
  const RankEnvironment first =
      detect_rank(launched + Environment{{"RANK", "0"}, {"LOCAL_RANK", "0"}});
  EXPECT_EQ(first.listen_fd, 9);
}

TEST(RankEnvironment, RemovingLeavesASingleProcess) {
  Environment all = kTorchrun + kOpenMpi + kHydra + kSlurm + Environment{{"PATH", "/bin"}};
  remove_rank_variables(all);
  EXPECT_EQ(detect_rank(all).how, RankSource::kSingle);
  EXPECT_EQ(all.at("PATH"), "/bin");
}

TEST(RankEnvironment, DescriptionNamesValuesAndSources) {
  const std::string text = detect_rank(kTorchrun).describe();
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("rank 5 of 8 (RANK=5, WORLD_SIZE=8)"),
          HasSubstr("address node1 (MASTER_ADDR=node1)"),
          HasSubstr("started by torchrun")));
}

TEST(RankEnvironment, ReadsThisProcess) {
  setenv("PALIMPSEST_TEST_VARIABLE", "a=b", 1);
  EXPECT_EQ(current_environment().at("PALIMPSEST_TEST_VARIABLE"), "a=b");
}

} // namespace
} // namespace palimpsest
