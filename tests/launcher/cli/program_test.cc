// Covers: launcher/cli/config_verb.cc launcher/cli/main.cc launcher/cli/usage.cc launcher/cli/verbs.cc
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::run;

class ProgramTest : public testing::ProgramFixture {
 protected:
  void SetUp() override {
    ProgramFixture::SetUp();
    path_ = (folder_ / "run.yaml").string();
    std::ofstream(path_) << "model: {preset: tiny}\n"
                            "data: {files: [corpus.txt]}\n"
                            "optimizer: {learning_rate: 1e-3}\n";
  }
  std::string path_;
};

TEST_F(ProgramTest, PrintsHelpWithoutArguments) {
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("config"));
  EXPECT_THAT(outcome.out, HasSubstr("Examples:"));
}

TEST_F(ProgramTest, HelpOfEveryVerbHasExamples) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"--help"},
           {"config", "--help"},
           {"config", "show", "--help"},
           {"config", "reference", "--help"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("Examples:\n  palimpsest config"));
  }
}

TEST_F(ProgramTest, UnknownVerbIsRefusedWithTheNearest) {
  const Outcome outcome = run({"confg"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("confg: unknown verb (did you mean config?); there are"));
}

TEST_F(ProgramTest, WrongUsageEndsWithTwo) {
  EXPECT_EQ(run({"--nonsense"}).exit_code, 2);
  EXPECT_EQ(run({"config"}).exit_code, 2);
  EXPECT_EQ(run({"config", "show"}).exit_code, 2);
  EXPECT_EQ(run({"config", "show", path_, "--world", "0"}).exit_code, 2);
  EXPECT_EQ(run({""}).exit_code, 2);
}

TEST_F(ProgramTest, WrongUsageIsToldInASentence) {
  const auto told = [](const std::vector<std::string>& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_EQ(
      told({"config", "show", path_, "--wrld=3"}),
      "palimpsest: config show: unknown option --wrld (did you mean --world?); palimpsest config "
      "show --help shows what there is\n");
  EXPECT_EQ(
      told({"train", "--allow-chnge"}), // which is told before the config that is missing
      "palimpsest: train: unknown option --allow-chnge (did you mean --allow-change?); palimpsest "
      "train --help shows what there is\n");
  EXPECT_THAT(
      told({"--nonsense"}), HasSubstr("palimpsest: unknown option --nonsense; palimpsest --help"));
  EXPECT_THAT(told({"train"}), HasSubstr("train: config is missing: YAML or JSON file; "));
  EXPECT_THAT(told({"inspect", "a", "b"}), HasSubstr("inspect: 'b' is one argument too many; "));
  EXPECT_THAT(
      told({"config"}),
      HasSubstr(
          "config: what shall be done? Give one of show, reference; palimpsest config --help"));
  EXPECT_THAT(
      told({"plan", path_, "--world", "0"}),
      HasSubstr("plan: --world: '0' is not allowed; give a whole number in [1 - 1048576]; "));
  for (const char* option : {"--html", "--save-chain", "--hardware"}) { // empty is not "not given"
    EXPECT_THAT(
        told({"plan", path_, option, ""}),
        HasSubstr(option + std::string(": '' is not allowed; give text that is not empty; ")));
  }
  EXPECT_THAT(
      told({"launch", "-n", "2", "train", path_, "--html", ""}), HasSubstr("train: --html: ''"));
  EXPECT_THAT(told({"plan", path_, "--world", "x"}), HasSubstr("'x' is not allowed; give a whole"));
  EXPECT_THAT(told({"plan", path_, "--world"}), HasSubstr("plan: --world needs a value: "));
  EXPECT_THAT(
      told({"plan", path_, "--world", "2", "--world", "3"}),
      HasSubstr("plan: --world is given more than once; give it once; "));
  EXPECT_THAT(
      told({"launch", "-n", "x", "train", path_, "--html=a"}),
      HasSubstr("launch: --ranks: 'x' is not allowed; give a whole number in [1 - 4096]; "));
  EXPECT_THAT(
      told({"launch", "-n", "2", "train", path_, "--allow-chnge"}),
      HasSubstr("train: unknown option --allow-chnge (did you mean --allow-change?)"));
}

// As behind `| head -1`.
TEST_F(ProgramTest, AReaderThatHasGoneIsNoError) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const auto before = std::signal(SIGPIPE, SIG_IGN); // as in main()
  const int screen = ::dup(STDOUT_FILENO);
  ::dup2(ends[1], STDOUT_FILENO);
  const std::vector<const char*> arguments = {"palimpsest", "config", "reference"};
  ::testing::internal::CaptureStderr();
  const int code = run_program(3, arguments.data());
  const std::string told = ::testing::internal::GetCapturedStderr();
  std::cout.clear();
  std::clearerr(stdout);
  ::dup2(screen, STDOUT_FILENO);
  ::close(screen);
  ::close(ends[1]);
  std::signal(SIGPIPE, before);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(told, "");
}

TEST_F(ProgramTest, ShowsAConfigWithOverrides) {
  const Outcome outcome =
      run({"config", "show", path_, "training.steps=7", "optimizer.betas=[0.8, 0.9]"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("steps: 7 "));
  EXPECT_THAT(outcome.out, HasSubstr("betas: [0.8, 0.9] "));
  EXPECT_THAT(outcome.out, HasSubstr("# override training.steps=7"));
}

TEST_F(ProgramTest, OptionsMayStandBetweenOverrides) {
  const Outcome outcome =
      run({"config", "show", path_, "training.steps=7", "--world", "2", "training.seed=3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("x 2 (data-parallel size)"));
  EXPECT_THAT(outcome.out, HasSubstr("seed: 3 "));
}

TEST_F(ProgramTest, ConfigErrorsAreOneMessageAndTwo) {
  const Outcome outcome = run({"config", "show", path_, "training.stepps=7"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(
      outcome.err,
      "palimpsest: override training.stepps=7: training.stepps: unknown key (did you mean "
      "steps?)\n");
  EXPECT_EQ(run({"config", "show", "/nonexistent/run.yaml"}).exit_code, 2);
}

TEST_F(ProgramTest, PrintsTheReference) {
  const Outcome outcome = run({"config", "reference"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("| `learning_rate` |"));
}

} // namespace
} // namespace palimpsest
