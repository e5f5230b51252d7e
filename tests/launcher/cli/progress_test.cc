#include <palimpsest/launcher/cli/progress.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <sstream>
#include <string>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

StepRecord step(int64_t number, double loss = 2.5, bool skipped = false) {
  return {
      .step = number,
      .loss = loss,
      .grad_norm = 0.125,
      .learning_rate = 5e-4,
      .skipped = skipped,
      .tokens = 64,
      .tokens_per_s = 1234.4,
      .peak_device_bytes = 3000,
      .peak_rss_bytes = 10000};
}

/// The steps of the lines that were printed for a run of `steps`.
std::vector<int64_t> printed(int64_t steps, int64_t every) {
  std::ostringstream out;
  Progress progress(steps, every, out);
  for (int64_t number = 1; number <= steps; ++number) {
    progress.step_end(step(number));
  }
  std::istringstream in(out.str());
  std::vector<int64_t> found;
  for (std::string line; std::getline(in, line);) {
    EXPECT_THAT(line, HasSubstr("/" + std::to_string(steps) + "  loss 2.5000"));
    found.push_back(std::stoll(line.substr(5)));
  }
  return found;
}

TEST(Progress, PrintsEveryNthStepAndTheFirstAndTheLast) {
  EXPECT_EQ(printed(3, 1), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(printed(10, 4), (std::vector<int64_t>{1, 4, 8, 10}));
  EXPECT_EQ(printed(7, 100), (std::vector<int64_t>{1, 7}));
  EXPECT_EQ(printed(1, 1), (std::vector<int64_t>{1}));
  EXPECT_EQ(printed(5, 0), (std::vector<int64_t>{}));
}

TEST(Progress, ALineHasTheRecord) {
  std::ostringstream out;
  Progress progress(4, 1, out);
  progress.step_end(step(1));
  progress.step_end(step(2, 0.5, true));
  EXPECT_THAT(
      out.str(),
      StartsWith("step 1/4  loss 2.5000  norm 0.125  rate 0.0005  1234 tokens/s  peak "));
  EXPECT_THAT(out.str(), HasSubstr("step 2/4  loss 0.5000"));
  EXPECT_EQ(out.str().find("SKIPPED"), out.str().rfind("SKIPPED")); // the second step's alone
  EXPECT_GT(out.str().find("SKIPPED"), out.str().find("step 2/4"));
  EXPECT_THAT(out.str(), Not(HasSubstr("\r"))); // no terminal
}

// A run that goes on after step 2 of 6: its steps, with what is between them, take 20 and 10 seconds.
TEST(Progress, TheTimeLeftIsThatOfThisRunsSteps) {
  double now = 1000;
  std::ostringstream out;
  Progress progress(6, 1, out, unknown_utilization, [&] { return now; });
  now += 20;
  progress.step_end(step(3)); // 3 more of 20
  EXPECT_THAT(out.str(), ::testing::EndsWith("eta 1:00\n"));
  now += 10;
  progress.step_end(step(4, 2.5, true)); // 2 more of 15
  EXPECT_THAT(out.str(), ::testing::EndsWith("eta 0:30  SKIPPED\n"));
  now += 3 * 3600;
  progress.step_end(step(5)); // 1 more of 10,830 / 3
  EXPECT_THAT(out.str(), ::testing::EndsWith("eta 1:00:10\n"));
}

// Half of the peak in a step of one second, a quarter in one of three: 5/16 on the whole.
TEST(Progress, TheMfuIsToldWhereThePeakIsKnown) {
  std::ostringstream out;
  const auto mfu = [](const StepRecord& record) -> std::optional<double> {
    return record.step == 1 ? 0.5 : 0.25;
  };
  Progress progress(2, 1, out, mfu);
  StepRecord record = step(1);
  record.step_time_s = 1;
  record.data_wait_s = 0.05;
  progress.step_end(record);
  EXPECT_THAT(out.str(), HasSubstr("tokens/s  MFU 50.0 %  peak "));
  record = step(2);
  record.step_time_s = 3;
  progress.step_end(record);
  PlanReport report;
  report.ranks.resize(1);
  report.ranks[0].peak[TierId::kDevice] = 2000;
  EXPECT_THAT(progress.summary(report, 0), HasSubstr("tokens/s, MFU 31.2 %; loss"));
  EXPECT_THAT(
      progress.summary(report, 0), HasSubstr("; 1.25 % of the steps' time waiting for data"));
  Progress other(1, 1, out);
  other.step_end(step(1));
  EXPECT_THAT(
      other.summary(report, 0), HasSubstr("MFU n/a (logging.hardware names no peak); loss"));
}

// 3,000 bytes measured and 2,000 predicted are 50 % more; of 10,000 resident 4,000 were there
// before, 3,000 were tracked, so 3,000 were not.
TEST(Progress, TheSummaryComparesPeaksAndCountsSkippedSteps) {
  std::ostringstream out;
  Progress progress(3, 0, out);
  progress.step_end(step(1, 4));
  progress.step_end(step(2, 3, true));
  progress.step_end(step(3, 2));
  PlanReport report;
  report.ranks.resize(1);
  report.ranks[0].peak[TierId::kDevice] = 2000;
  const std::string text = progress.summary(report, 4000);
  EXPECT_THAT(text, StartsWith("3 steps in "));
  EXPECT_THAT(text, HasSubstr("loss 4.0000 -> 2.0000"));
  EXPECT_THAT(text, HasSubstr("(+50.0 %)"));
  EXPECT_THAT(text, HasSubstr("warning: 1 of 3 steps skipped"));
  EXPECT_EQ(out.str(), "");

  Progress clean(1, 0, out);
  clean.step_end(step(1));
  EXPECT_THAT(clean.summary(report, 0), Not(HasSubstr("warning")));
}

// 64 tokens in 10 seconds, of which 6 went to evaluations: 16 a second.
TEST(Progress, EvaluationsHaveLinesOfTheirOwnAndAreNoTrainingTime) {
  double now = 0;
  std::ostringstream out;
  Progress progress(1, 1, out, unknown_utilization, [&] { return now; });
  now = 10;
  progress.step_end(step(1));
  progress.evaluation_end(
      {.step = 1,
       .loss = 2.25,
       .perplexity = 9.487,
       .samples = 7,
       .targets = 84,
       .time_s = 6,
       .best = true});
  EXPECT_THAT(
      out.str(),
      HasSubstr("evaluation: loss 2.2500, perplexity 9.49 after step 1, 84 targets of 7 samples in "
                "6.0 s, the lowest so far\n"));
  PlanReport report;
  report.ranks.resize(1);
  report.ranks[0].peak[TierId::kDevice] = 3000;
  const std::string summary = progress.summary(report, 0);
  EXPECT_THAT(summary, HasSubstr("1 step in 0:04, 16 tokens/s"));
  EXPECT_THAT(
      summary,
      HasSubstr(
          "evaluation: loss 2.2500, perplexity 9.49 after step 1; 0:06 spent on evaluations"));
}

TEST(Progress, AQuietRunTellsItsLastEvaluationAtTheEnd) {
  std::ostringstream out;
  Progress progress(1, 0, out);
  progress.step_end(step(1));
  progress.evaluation_end({.step = 1, .loss = 0.5}); // of features: there is no perplexity
  EXPECT_EQ(out.str(), "");
  PlanReport report;
  report.ranks.resize(1);
  report.ranks[0].peak[TierId::kDevice] = 3000;
  EXPECT_THAT(progress.summary(report, 0), HasSubstr("evaluation: loss 0.5000 after step 1; "));
}

} // namespace
} // namespace palimpsest
