#include <palimpsest/launcher/compose/stack_table.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <string_view>

namespace palimpsest {
namespace {

using nlohmann::json;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Without the first step, where there are others.
double typical(const std::vector<double>& steps) {
  return median({steps.begin() + (steps.size() > 1 ? 1 : 0), steps.end()});
}

double greatest_difference(const std::vector<double>& mine, const std::vector<double>& baseline) {
  check(mine.size() == baseline.size(), "{} steps beside {}", mine.size(), baseline.size());
  double greatest = 0;
  for (size_t step = 0; step < mine.size(); ++step) {
    const double scale = baseline[step] == 0 ? 1 : std::abs(baseline[step]);
    greatest = std::max(greatest, std::abs(mine[step] - baseline[step]) / scale);
  }
  return greatest;
}

struct Column {
  std::string_view title;
  size_t width; // in the terminal
  std::string (*text)(const StackRow& row);
};

std::string difference(double value) {
  return value == 0 ? "0" : fmt::format("{:.1e}", value);
}

constexpr std::array kColumns = {
    Column{"device", 10, [](const StackRow& row) { return format_bytes(row.peak_device_bytes); }},
    Column{
        "of baseline",
        13,
        [](const StackRow& row) { return fmt::format("{:.1f} %", row.percent); }},
    Column{
        "predicted",
        11,
        [](const StackRow& row) { return format_bytes(row.predicted_peak_bytes); }},
    Column{"host", 10, [](const StackRow& row) { return format_bytes(row.peak_host_bytes); }},
    Column{"disk", 10, [](const StackRow& row) { return format_bytes(row.peak_disk_bytes); }},
    Column{"RSS", 10, [](const StackRow& row) { return format_bytes(row.peak_rss_bytes); }},
    Column{
        "step",
        12,
        [](const StackRow& row) { return fmt::format("{:.3g} s", row.step_time_s); }},
    Column{
        "tokens/s",
        10,
        [](const StackRow& row) { return fmt::format("{:.0f}", row.tokens_per_s); }},
    Column{
        "recomputed",
        12,
        [](const StackRow& row) { return fmt::format("{:.1f} %", 100 * row.recompute_share); }},
    Column{"loss diff", 11, [](const StackRow& row) { return difference(row.loss_difference); }},
    Column{
        "norm diff",
        11,
        [](const StackRow& row) { return difference(row.grad_norm_difference); }},
};

constexpr int kNameWidth = 22;

} // namespace

StackMeasurement read_measurement(
    const std::string& name,
    const std::string& report_json,
    const std::string& metrics) {
  StackMeasurement run;
  const json summary = json::parse(report_json).at("summary");
  run.summary.predicted_peak_bytes = summary.at("predicted_peak_bytes").get<int64_t>();
  run.summary.recompute_share = summary.at("recompute_share").get<double>();
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    const json step = json::parse(line);
    if (step.contains("eval_loss")) {
      continue;
    }
    for (const char* field : {"loss", "grad_norm"}) {
      if (!step.at(field).is_number()) {
        throw UserError(
            "stack: {}: {} is not finite in step {}; a comparison needs a run that trains, so give "
            "a lower learning rate",
            name,
            field,
            step.at("step").get<int64_t>());
      }
    }
    run.losses.push_back(step.at("loss").get<double>());
    run.grad_norms.push_back(step.at("grad_norm").get<double>());
    run.step_times_s.push_back(step.at("step_time_s").get<double>());
    run.tokens_per_s.push_back(step.at("tokens_per_s").get<double>());
    run.peak_device_bytes =
        std::max(run.peak_device_bytes, step.at("peak_device_bytes").get<int64_t>());
    run.peak_rss_bytes = std::max(run.peak_rss_bytes, step.at("peak_rss_bytes").get<int64_t>());
  }
  return run;
}

StackRow stack_row(
    const std::string& name,
    const StackMeasurement& run,
    const StackMeasurement& baseline) {
  check(!run.losses.empty(), "{}: no step was measured", name);
  StackRow row{.name = name};
  row.peak_device_bytes = run.peak_device_bytes;
  row.predicted_peak_bytes = run.summary.predicted_peak_bytes.value_or(0);
  row.peak_rss_bytes = run.peak_rss_bytes;
  row.percent = 100.0 * static_cast<double>(run.peak_device_bytes) /
      static_cast<double>(baseline.peak_device_bytes);
  row.step_time_s = typical(run.step_times_s);
  row.tokens_per_s = typical(run.tokens_per_s);
  row.recompute_share = run.summary.recompute_share.value_or(0);
  row.loss_difference = greatest_difference(run.losses, baseline.losses);
  row.grad_norm_difference = greatest_difference(run.grad_norms, baseline.grad_norms);
  return row;
}

std::string stack_head() {
  std::string line = fmt::format("{:<{}}", "", kNameWidth);
  for (const Column& column : kColumns) {
    line += fmt::format("{:>{}}", column.title, column.width);
  }
  return line + "\n";
}

std::string stack_line(const StackRow& row) {
  std::string line = fmt::format("{:<{}}", row.name, kNameWidth);
  for (const Column& column : kColumns) {
    line += fmt::format("{:>{}}", column.text(row), column.width);
  }
  return line + "\n";
}

std::string stack_markdown(const std::vector<StackRow>& rows) {
  std::string head = "| |";
  std::string rule = "|---|";
  for (const Column& column : kColumns) {
    head += fmt::format(" {} |", column.title);
    rule += "---:|";
  }
  std::string text = head + "\n" + rule + "\n";
  for (const StackRow& row : rows) {
    text += fmt::format("| {} |", row.name);
    for (const Column& column : kColumns) {
      text += fmt::format(" {} |", column.text(row));
    }
    text += "\n";
  }
  return text;
}

std::string stack_csv(const std::vector<StackRow>& rows) {
  std::string text;
  for (const auto& row : nlohmann::ordered_json::parse(to_json(rows))) {
    std::vector<std::string> names;
    std::vector<std::string> values;
    for (const auto& [key, value] : row.items()) {
      names.push_back(key);
      values.push_back(value.dump());
    }
    if (text.empty()) {
      text = fmt::format("{}\n", fmt::join(names, ","));
    }
    text += fmt::format("{}\n", fmt::join(values, ","));
  }
  return text;
}

} // namespace palimpsest
