// Covers: plan_table.cc
#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/cli/plan_table.h>
#include <palimpsest/launcher/compose/run.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <optional>
#include <regex>
#include <set>

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
    path_ = write_tiny_config();
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

// What a budget came to: the row says what the run's plan is.
TEST_F(PlanVerb, SaysTheBudgetAndWhatWasChosenForIt) {
  const Outcome fixed = run({"plan", path_, "memory.device_budget=64MiB"});
  ASSERT_EQ(fixed.exit_code, 0) << fixed.err;
  EXPECT_EQ(
      row(fixed.out, "checkpointing"), "none, full tapes; micro-batches of 2; budget 64.0 MiB");
  const std::string all = "activation_checkpointing=auto";
  EXPECT_THAT(
      row(run({"plan", path_, all}).out, "checkpointing"),
      MatchesRegex("auto: none, full tapes; micro-batches of 2; budget .* [MGT]iB"));
  const std::string tight = run({"plan", path_, all, "memory.device_budget=1"}).err;
  std::smatch least;
  ASSERT_TRUE(std::regex_search(tight, least, std::regex("\\(([0-9]+) bytes\\) at least")));
  for (const char* policy : {"auto", "dynamic_programming", "revolve"}) {
    for (const int64_t extra : {0, 40'000, 100'000}) {
      const std::vector<std::string> overrides = {
          std::string("activation_checkpointing=") + policy,
          fmt::format("memory.device_budget={}", std::stoll(least.str(1)) + extra)};
      std::optional<palimpsest::Run>
          made; // one: another measures other seconds, and may choose else
      try {
        made.emplace(load_config(path_, overrides));
      } catch (const UserError& error) { // revolve needs more than the least
        EXPECT_THAT(error.what(), HasSubstr("is not enough for a step"));
        continue;
      }
      palimpsest::Run& planned = *made;
      const StepChoice& choice = planned.plans().choice(planned.micro_batches());
      const std::string said = row(describe_run(planned), "checkpointing");
      EXPECT_THAT(said, HasSubstr(choice.policy));
      // The closed forms are about layers that run again as wholes, once.
      EXPECT_THAT(describe_work(planned), Not(HasSubstr("K = -")));
      EXPECT_EQ(said.starts_with("auto: "), std::string(policy) == "auto");
      EXPECT_THAT(said, HasSubstr("; micro-batches of 2; budget "));
      std::set<TapeMode> tapes; // that the layers' blocks leave, of 1 embedding, 8 of them, 1 head
      for (const Op& op : planned.full_plan().plan) {
        if (op.kind == OpKind::kForward && op.block > 0 && op.block < 9) {
          tapes.insert(op.tape);
        }
      }
      std::smatch named;
      ASSERT_TRUE(std::regex_search(said, named, std::regex(", ([a-z]+( and full)?) tapes; m")));
      const bool lean = tapes.contains(TapeMode::kLean);
      const bool full = tapes.contains(TapeMode::kFull);
      EXPECT_EQ(named.str(1), lean && full ? "lean and full" : lean ? "lean" : "full") << said;
    }
  }
}

// A run that goes on has no use for the folder of the model that it began with.
TEST_F(PlanVerb, PlansFromWhatACheckpointKeepsWhereTheModelsFolderIsGone) {
  namespace fs = std::filesystem;
  const fs::path model = folder_ / "model";
  fs::copy(
      fs::path(PALIMPSEST_TEST_DATA) / "models/llama-tiny", model, fs::copy_options::recursive);
  const std::vector<std::string> words = {
      path_, "model.preset=null", "model.path=" + model.string(), "data.sequence_length=16"};
  const auto verb = [&](const std::string& name) {
    std::vector<std::string> all = {name};
    all.insert(all.end(), words.begin(), words.end());
    return run(all);
  };
  const Outcome before = verb("plan");
  ASSERT_EQ(before.exit_code, 0) << before.err;
  ASSERT_EQ(verb("train").exit_code, 0);
  fs::remove_all(model);
  const Outcome after = verb("plan");
  ASSERT_EQ(after.exit_code, 0) << after.err;
  for (const char* name : {"model", "batch", "checkpointing", "peak"}) {
    EXPECT_EQ(row(after.out, name), row(before.out, name));
  }
  EXPECT_THAT(row(after.out, "note"), HasSubstr("is gone: config and tokenizer are taken from"));
  fs::remove_all(folder_ / "out");
  EXPECT_EQ(verb("plan").exit_code, 2);
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
