// Covers: launcher/compose/stack_table.cc
#include <palimpsest/launcher/compose/stack_table.h>

#include <palimpsest/core/base/error.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kReport =
    R"({"summary": {"predicted_peak_bytes": 2048, "recompute_share": 0.25}})";

std::string metrics(const std::vector<double>& losses, const std::vector<double>& seconds) {
  std::string text;
  for (size_t step = 0; step < losses.size(); ++step) {
    text += fmt::format(
        R"({{"step": {}, "loss": {}, "grad_norm": {}, "step_time_s": {}, "tokens_per_s": {}, )"
        R"("peak_device_bytes": {}, "peak_rss_bytes": {}}})"
        "\n",
        step + 1,
        losses[step],
        2 * losses[step],
        seconds[step],
        100 / seconds[step],
        1000 - step,
        5000 + step);
  }
  return text;
}

TEST(StackTable, EvaluationsAreNoSteps) {
  const StackMeasurement run = read_measurement(
      "baseline",
      kReport,
      metrics({4, 3}, {9, 1}) +
          R"({"step": 2, "eval_loss": 5, "best": 5})"
          "\n");
  EXPECT_EQ(run.losses, (std::vector<double>{4, 3}));
}

TEST(StackTable, ARowIsWhatItsRunMeasured) {
  const StackMeasurement baseline = read_measurement(
      "baseline",
      R"({"summary": {"predicted_peak_bytes": 4000, "recompute_share": 0}})",
      metrics({4, 3, 2}, {9, 1, 1}));
  StackMeasurement run = read_measurement("+ bf16", kReport, metrics({4, 3.03, 2}, {50, 4, 2}));
  run.peak_device_bytes = 250;
  const StackRow row = stack_row("+ bf16", run, baseline);
  EXPECT_EQ(row.name, "+ bf16");
  EXPECT_EQ(row.peak_device_bytes, 250);
  EXPECT_EQ(row.predicted_peak_bytes, 2048);
  EXPECT_EQ(row.peak_rss_bytes, 5002);
  EXPECT_DOUBLE_EQ(row.percent, 25);
  EXPECT_DOUBLE_EQ(row.step_time_s, 3); // of 4 and 2: the first step warms up
  EXPECT_DOUBLE_EQ(row.tokens_per_s, (25 + 50) / 2.0);
  EXPECT_DOUBLE_EQ(row.recompute_share, 0.25);
  EXPECT_NEAR(row.loss_difference, 0.01, 1e-12);
  EXPECT_NEAR(row.grad_norm_difference, 0.01, 1e-12);
  const StackRow first = stack_row("baseline", baseline, baseline);
  EXPECT_DOUBLE_EQ(first.percent, 100);
  EXPECT_EQ(first.loss_difference, 0);
}

TEST(StackTable, ANumberThatIsNotFiniteIsNoComparison) {
  std::string text = metrics({4, 3}, {1, 1});
  text.replace(text.rfind("\"loss\": 3"), 9, "\"loss\": null");
  EXPECT_THAT(
      [&] { read_measurement("+ bf16", kReport, text); },
      ThrowsMessage<UserError>(HasSubstr("+ bf16: loss is not finite in step 2")));
}

TEST(StackTable, TablesHaveTheSameRows) {
  std::vector<StackRow> rows(2);
  rows[0] = {.name = "baseline", .peak_device_bytes = 4096, .percent = 100, .step_time_s = 0.5};
  rows[1] = {.name = "+ lean tape", .peak_device_bytes = 1024, .percent = 25, .step_time_s = 1.25};
  rows[1].loss_difference = 3.2e-7;
  EXPECT_THAT(stack_line(rows[1]), HasSubstr("+ lean tape"));
  EXPECT_THAT(stack_line(rows[1]), HasSubstr("1.00 KiB       25.0 %"));
  EXPECT_THAT(stack_line(rows[1]), HasSubstr("3.2e-07"));
  EXPECT_EQ(stack_line(rows[1]).size(), stack_head().size());
  const std::string markdown = stack_markdown(rows);
  EXPECT_THAT(markdown, HasSubstr("| + lean tape | 1.00 KiB | 25.0 % |"));
  EXPECT_EQ(std::count(markdown.begin(), markdown.end(), '\n'), 4);
  const std::string csv = stack_csv(rows);
  EXPECT_THAT(csv, HasSubstr("name,peak_device_bytes,predicted_peak_bytes,"));
  EXPECT_THAT(csv, HasSubstr("\n\"+ lean tape\",1024,0,"));
}

} // namespace
} // namespace palimpsest
