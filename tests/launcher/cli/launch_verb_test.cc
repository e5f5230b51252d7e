#include <palimpsest/launcher/launch/port.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <gmock/gmock.h>

#include <fstream>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::run;

class LaunchVerb : public testing::ProgramFixture {
 protected:
  void SetUp() override {
    ProgramFixture::SetUp();
    config_ = write_tiny_config("global_batch_size: 4, micro_batch_size: 1, steps: 2");
  }
  std::string config_;
};

TEST_F(LaunchVerb, DryRunShowsThePlanAndStartsNothing) {
  const Outcome outcome =
      run({"launch", "-n", "3", "--no-mpirun", "--dry-run", "train", config_, "training.seed=3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("ranks     3 (-n)"),
          HasSubstr("as own processes (--no-mpirun)"),
          HasSubstr("logs      " + (folder_ / "out/logs/rank-0000.log").string()),
          HasSubstr("train " + config_ + " training.seed=3\n"),
          HasSubstr("rank 2    host ")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(LaunchVerb, TheLogsFollowTheOutputThatTheOverridesName) {
  const std::string other = (folder_ / "other").string();
  const Outcome outcome =
      run({"launch", "-n", "2", "--dry-run", "train", config_, "training.output=" + other});
  EXPECT_THAT(outcome.out, HasSubstr("logs      " + other + "/logs/rank-0000.log"));
  const Outcome given =
      run({"launch", "-n", "2", "--dry-run", "--log-folder", "here", "train", config_});
  EXPECT_THAT(given.out, HasSubstr("logs      here/rank-0000.log"));
}

// Every order and way of writing that `train` takes: a value of an option is no config.
TEST_F(LaunchVerb, TheRanksArgumentsAreReadAsTrainReadsThem) {
  const std::string output = "training.output=" + (folder_ / "other").string();
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--dump-gradients", "g.safetensors", config_, output},
           {"--dump-gradients=g.safetensors", config_, output},
           {config_, "--dump-gradients", "a=b.safetensors", output},
           {"--allow-change", config_, output},
           {config_, output, "--dump-gradients", "g.safetensors"}}) {
    std::vector<std::string> all = {"launch", "-n", "2", "--dry-run", "train"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.exit_code, 0) << ::testing::PrintToString(words) << outcome.err;
    EXPECT_THAT(
        outcome.out, HasSubstr("logs      " + (folder_ / "other/logs/rank-0000.log").string()))
        << ::testing::PrintToString(words);
  }
}

TEST_F(LaunchVerb, WhatTrainDoesNotTakeIsAnErrorBeforeAnyRank) {
  const Outcome before = run({"launch", "-n", "2", "--allow-change", "train", config_});
  EXPECT_EQ(before.exit_code, 2);
  EXPECT_THAT(before.err, HasSubstr("'--allow-change' is no option of launch"));
  const Outcome plan = run({"launch", "-n", "2", "plan", config_});
  EXPECT_EQ(plan.exit_code, 2);
  EXPECT_THAT(plan.err, HasSubstr("ranks cannot do 'plan'"));
  const Outcome unknown = run({"launch", "-n", "2", "train", config_, "--dump-gradient", "g"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--dump-gradient"));
  const Outcome missing = run({"launch", "-n", "2", "train", "--allow-change"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("config is missing"));
  const Outcome help = run({"launch", "-n", "2", "train", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--dump-gradients"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(LaunchVerb, WorldSizeFollowsHostfileAndFilters) {
  const std::string hosts = (folder_ / "hosts.txt").string();
  std::ofstream(hosts) << "w0 slots=4\nw1 slots=4\n";
  const auto ranks_with = [&](std::vector<std::string> filter) {
    std::vector<std::string> words = {"launch", "--hostfile", hosts, "--dry-run"};
    words.insert(words.end(), filter.begin(), filter.end());
    words.insert(words.end(), {"train", config_});
    return run(words);
  };
  EXPECT_THAT(ranks_with({}).out, HasSubstr("ranks     8 "));
  EXPECT_THAT(ranks_with({"--include", "w0"}).out, HasSubstr("ranks     4 "));
  EXPECT_THAT(ranks_with({"--include", "w0@w1:0,2"}).out, HasSubstr("ranks     6 "));
  EXPECT_THAT(ranks_with({"--exclude", "w1:1"}).out, HasSubstr("ranks     7 "));
  EXPECT_EQ(ranks_with({"--include", "w0:9"}).exit_code, 2);
  EXPECT_EQ(ranks_with({"--include", "w2"}).exit_code, 2);
  EXPECT_EQ(ranks_with({"--include", "w0", "--exclude", "w1"}).exit_code, 2);
  EXPECT_EQ(run({"launch", "--hostfile", "absent", "--dry-run", "train", config_}).exit_code, 2);
}

TEST_F(LaunchVerb, AWrongConfigIsAnErrorBeforeAnyRank) {
  const Outcome outcome = run({"launch", "-n", "2", "train", config_, "training.stepz=3"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("stepz"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(LaunchVerb, AFileThatCannotBeWrittenIsAnErrorBeforeAnyRank) {
  for (const char* option : {"--html", "--json", "--dump-gradients"}) {
    const std::string file = (folder_ / "nowhere/file").string();
    const Outcome outcome = run({"launch", "-n", "2", "train", config_, option, file});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("cannot write " + file));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
    const std::string good = (folder_ / "file").string();
    EXPECT_EQ(run({"launch", "-n", "2", "--dry-run", "train", config_, option, good}).exit_code, 0);
    EXPECT_FALSE(std::filesystem::exists(good)); // it was only tried
  }
}

TEST_F(LaunchVerb, AJobThatDoesNotBeginLeavesNoLogs) {
  const ListeningSocket taken(0);
  const std::string port = std::to_string(taken.port());
  const Outcome outcome =
      run({"launch", "-n", "2", "--no-mpirun", "--master-port", port, "train", config_});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr(port));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(LaunchVerb, WrongUseEndsWithTwo) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"launch"},
           {"launch", "-n", "2"},
           {"launch", "train", config_},
           {"launch", "-n", "0", "train", config_},
           {"launch", "-n", "x", "train", config_},
           {"launch", "-n", "2", "train"},
           {"launch", "-n", "2", "trian", config_},
           {"launch", "-n", "2", "launch", "-n", "2", "train", config_},
           {"launch", "-n", "2", "--master-port", "70000", "train", config_},
           {"launch", "-n", "2", "--grace", "-1", "train", config_},
           {"launch", "-n", "2", "--include", "w0", "train", config_},
           {"launch", "--as-rank", "train", config_}}) {
    EXPECT_EQ(run(words).exit_code, 2) << ::testing::PrintToString(words);
  }
}

} // namespace
} // namespace palimpsest
