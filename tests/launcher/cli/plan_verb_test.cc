// Covers: plan_table.cc
#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/cli/plan_table.h>
#include <palimpsest/launcher/compose/run.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <regex>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using testing::Outcome;
using testing::run;

class PlanVerb : public testing::ProgramFixture {
 protected:
  void SetUp() override {
    ProgramFixture::SetUp();
    path_ = (folder_ / "run.yaml").string();
    std::ofstream(folder_ / "corpus.txt") << std::string(33 * 12, 'a');
    std::ofstream(path_) << fmt::format(
        "model: {{preset: tiny}}\n"
        "data: {{files: [{}], sequence_length: 32}}\n"
        "training: {{global_batch_size: 4, micro_batch_size: 2, threads: 1, output: {}}}\n"
        "optimizer: {{learning_rate: 1e-3}}\n",
        (folder_ / "corpus.txt").string(),
        (folder_ / "out").string());
  }
  std::string path_;
};

/// The text behind `name` at the start of a line.
std::string row(const std::string& text, const std::string& name) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(text, match, std::regex("(?:^|\n) *" + name + " +(.+)")))
      << name << " in\n"
      << text;
  return match.str(1);
}

TEST_F(PlanVerb, PrintsThePeakThatSimulationPromises) {
  for (const char* policy : {"none", "full"}) {
    const std::string override = std::string("activation_checkpointing=") + policy;
    const Outcome outcome = run({"plan", path_, override});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    palimpsest::Run planned(load_config(path_, {override}));
    const PlannedStep& step = planned.full_plan();
    const PlanReport report = simulate(Plans{step.plan}, step.job);
    EXPECT_EQ(row(outcome.out, "peak"), format_bytes(report.peak(TierId::kDevice)));
    EXPECT_THAT(row(outcome.out, "model"), HasSubstr("llama, "));
    EXPECT_THAT(row(outcome.out, "batch"), HasSubstr("4 samples a step: micro-batches of up to 2"));
    EXPECT_EQ(row(outcome.out, "checkpointing"), std::string(policy) + ", full tapes");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out")); // it plans and writes nothing
  }
}

// Four decoder layers: 2N = 8 layer executions a micro-batch with all tapes, 3N = 12 with none.
TEST_F(PlanVerb, CountsWorkAsTheClosedFormsDo) {
  const Outcome all = run({"plan", path_});
  EXPECT_THAT(all.out, HasSubstr("N = 4 layers, K = 4 kept: 8 layer executions a micro-batch"));
  EXPECT_THAT(all.out, HasSubstr("(0.0 % of all)"));
  EXPECT_THAT(row(all.out, "blocks"), MatchesRegex("20 forwards executed, 0 of them again;.*"));
  const Outcome none = run({"plan", path_, "activation_checkpointing=full"});
  EXPECT_THAT(none.out, HasSubstr("N = 4 layers, K = 0 kept: 12 layer executions a micro-batch"));
  EXPECT_THAT(none.out, MatchesRegex(".*; tapes a = .* of N a = .* \\(25 %\\)\n.*")); // one of four
  EXPECT_THAT(all.out, MatchesRegex(".*; tapes K a = .* of N a = .* \\(100 %\\)\n.*"));
  EXPECT_THAT(run({"plan", path_, "training.steps=1"}).out, HasSubstr(" accumulated; 1 step\n"));
  // Two micro-batches of embedding, 4 x (attention, MLP) and head; the eight blocks of layers
  // again.
  EXPECT_THAT(row(none.out, "blocks"), MatchesRegex("36 forwards executed, 16 of them again;.*"));
}

TEST(PlanTable, BytesAtThePeakAddUpToIt) {
  PlanReport report;
  report.ranks.resize(1);
  RankReport& rank = report.ranks.front();
  rank.peak[TierId::kDevice] = 1000;
  rank.at_peak[PlanCategory::kParam] = 100;
  rank.at_peak[PlanCategory::kGradBuffer] = 50;
  rank.at_peak[PlanCategory::kGradShard] = 50;
  rank.at_peak[PlanCategory::kOptimizerState] = 200;
  rank.at_peak[PlanCategory::kTape] = 400;
  rank.at_peak[PlanCategory::kValue] = 150;
  rank.at_peak[PlanCategory::kWorkspace] = 50;
  const std::string text = describe_memory(report);
  EXPECT_THAT(row(text, "parameters"), HasSubstr(" 10 %"));
  EXPECT_THAT(row(text, "gradients"), HasSubstr(" 10 %"));
  EXPECT_THAT(row(text, "optimizer"), HasSubstr(" 20 %"));
  EXPECT_THAT(row(text, "activations"), HasSubstr(" 55 %"));
  EXPECT_THAT(row(text, "workspace"), HasSubstr(" 5 %"));
  EXPECT_EQ(row(text, "peak"), format_bytes(1000));
}

TEST_F(PlanVerb, TextIsThePlanAndReadsBack) {
  const Outcome outcome = run({"plan", path_, "--text", "activation_checkpointing=sqrt"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  palimpsest::Run planned(load_config(path_, {"activation_checkpointing=sqrt"}));
  EXPECT_EQ(parse_plan(outcome.out), planned.full_plan().plan);
}

TEST_F(PlanVerb, WrongUseEndsWithTwo) {
  EXPECT_EQ(run({"plan"}).exit_code, 2);
  EXPECT_EQ(run({"plan", "/nonexistent/run.yaml"}).exit_code, 2);
  EXPECT_EQ(run({"plan", path_, "--nonsense"}).exit_code, 2);
  const Outcome outcome = run({"plan", path_, "data.files=[/nonexistent/a.txt]"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/a.txt"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("internal error")));
}

} // namespace
} // namespace palimpsest
