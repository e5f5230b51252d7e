#include <palimpsest/launcher/cli/progress.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

} // namespace
} // namespace palimpsest
