#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/job.h>
#include <palimpsest/launcher/launch/launch_plan.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gmock/gmock.h>

#include <unistd.h>

#include <fstream>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Plan : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = make_temporary_folder("plan");
    options_.command = {"/usr/bin/palimpsest", "train", "run.yaml"};
    options_.log_folder = "runs/a/logs";
    options_.no_mpirun = "not in this test";
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }
  void hostfile(const std::string& text) {
    options_.hostfile = folder_ / "hosts.txt";
    std::ofstream(options_.hostfile) << text;
  }
  LaunchPlan plan(const Environment& environment = {}) const {
    return plan_launch(options_, environment);
  }
  std::string refusal(const Environment& environment = {}) const {
    try {
      plan(environment);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  }
  std::filesystem::path folder_;
  LaunchOptions options_;
};

TEST_F(Plan, RanksOfThisHost) {
  options_.ranks = 3;
  const LaunchPlan three = plan();
  ASSERT_EQ(three.world_size(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(three.ranks[static_cast<size_t>(rank)].local_rank, rank);
    EXPECT_FALSE(three.is_remote(three.ranks[static_cast<size_t>(rank)]));
  }
  EXPECT_EQ(three.address, "127.0.0.1");
  EXPECT_EQ(three.port, 0);
  EXPECT_EQ(three.visible_devices, "");
}

TEST_F(Plan, SlotsOfAHostfile) {
  hostfile("w0 slots=4\nw1 slots=4\n");
  EXPECT_EQ(plan().world_size(), 8);
  EXPECT_EQ(plan().address, "w0");
  EXPECT_EQ(plan().ranks[5].host, "w1");
  EXPECT_EQ(plan().ranks[5].local_rank, 1);
  EXPECT_TRUE(plan().is_remote(plan().ranks[5]));
  options_.ranks = 5;
  EXPECT_EQ(plan().world_size(), 5);
  options_.ranks = 9;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("-n 9"), HasSubstr("8 slots"), HasSubstr("w0: 4, w1: 4")));
}

TEST_F(Plan, Filters) {
  hostfile("w0 slots=4\nw1 slots=4\n");
  options_.include = "w0";
  EXPECT_EQ(plan().world_size(), 4);
  options_.include = "w0@w1:0,2";
  EXPECT_EQ(plan().world_size(), 6);
  EXPECT_EQ(plan().ranks[5].slot, 2);
  EXPECT_EQ(plan().ranks[5].local_rank, 1);
  options_.exclude = "w1:1";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--include"), HasSubstr("--exclude")));
  options_.include = "";
  EXPECT_EQ(plan().world_size(), 7);
  options_.exclude = "w1:9";
  EXPECT_THAT(refusal(), HasSubstr("'9'"));
  options_.hostfile.clear();
  options_.ranks = 2;
  EXPECT_THAT(refusal(), HasSubstr("--hostfile"));
}

TEST_F(Plan, ChosenSlotsOfThisHostAreItsDevices) {
  hostfile("localhost slots=4\n");
  EXPECT_EQ(plan().visible_devices, "");
  options_.include = "localhost:1,3";
  EXPECT_EQ(plan().visible_devices, "1,3");
  EXPECT_EQ(plan({{"CUDA_VISIBLE_DEVICES", "7,6,5,4"}}).visible_devices, "6,4");
  EXPECT_THAT(
      refusal({{"CUDA_VISIBLE_DEVICES", "7,6"}}),
      AllOf(HasSubstr("slot 3"), HasSubstr("CUDA_VISIBLE_DEVICES=7,6")));
}

TEST_F(Plan, TwoNamesOfThisHostAreRefused) {
  hostfile("localhost slots=2\n127.0.0.1 slots=2\n");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("localhost"), HasSubstr("127.0.0.1")));
}

TEST_F(Plan, AMissingHostfileOrNumberIsAnError) {
  EXPECT_THAT(refusal(), HasSubstr("-n 4"));
  options_.hostfile = folder_ / "absent.txt";
  options_.ranks = 2;
  EXPECT_THAT(refusal(), HasSubstr("absent.txt"));
}

TEST_F(Plan, Ports) {
  options_.ranks = 2;
  EXPECT_THAT(plan().port_source, HasSubstr("a free one"));
  EXPECT_EQ(plan({{"MASTER_PORT", "4000"}}).port, 4000);
  EXPECT_THAT(refusal({{"MASTER_PORT", "x"}}), HasSubstr("MASTER_PORT=x"));
  options_.port = 5000;
  EXPECT_EQ(plan({{"MASTER_PORT", "4000"}}).port, 5000);
}

TEST_F(Plan, ARankLaunchesNoRanks) {
  options_.ranks = 2;
  EXPECT_THAT(
      refusal(
          {{"OMPI_COMM_WORLD_RANK", "1"},
           {"OMPI_COMM_WORLD_SIZE", "4"},
           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
      AllOf(HasSubstr("rank 1 of 4"), HasSubstr("Open MPI")));
}

TEST_F(Plan, DescriptionNamesEverythingAndItsSource) {
  hostfile("localhost slots=2\nw1:2\n");
  const std::string text = plan().describe(options_);
  EXPECT_THAT(text, HasSubstr("ranks     4 (the slots of " + options_.hostfile.string()));
  EXPECT_THAT(text, HasSubstr("port      - (a free one, found at the start)"));
  EXPECT_THAT(text, HasSubstr("as own processes (not in this test)"));
  EXPECT_THAT(text, HasSubstr("logs      runs/a/logs/rank-0000.log"));
  EXPECT_THAT(text, HasSubstr("command   /usr/bin/palimpsest train run.yaml"));
  EXPECT_THAT(text, HasSubstr("rank 1    host " + plan().this_host + ", local rank 1, slot 1\n"));
  EXPECT_THAT(text, HasSubstr("rank 3    host w1, local rank 1, slot 1 (another host"));
}

TEST_F(Plan, OtherHostsAreRefusedAtTheStart) {
  hostfile("elsewhere.example.org slots=2\n");
  try {
    run_job(plan(), options_, {});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("elsewhere.example.org"));
  }
}

} // namespace
} // namespace palimpsest
