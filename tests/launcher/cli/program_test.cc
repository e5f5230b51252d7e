// Covers: launcher/cli/config_verb.cc launcher/cli/main.cc launcher/cli/verbs.cc
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
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
