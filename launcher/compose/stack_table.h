#pragma once

// The memory benchmark's results: measured steps become rows, rows become tables.
//
//   rows.push_back(stack_row("+ bf16", run, baseline));
//   std::cout << stack_line(rows.back());
//   write_file_atomically("stack.md", stack_markdown(rows));

#include <palimpsest/memory/report/report.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest {

/// What a row's run told: its report's summary, and metrics.jsonl by step.
struct StackMeasurement {
  ReportSummary summary;
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::vector<double> step_times_s;
  std::vector<double> tokens_per_s;
  int64_t peak_device_bytes = 0; ///< of the rank that has most
  int64_t peak_rss_bytes = 0; ///< the same
};

/// From the texts of the two files that a run writes. UserError naming `name` where a step's numbers
/// are missing or not finite.
StackMeasurement read_measurement(
    const std::string& name,
    const std::string& report_json,
    const std::string& metrics);

/// Times are medians over the steps but the first, which warms up. Differences are the greatest over
/// all steps, relative to the baseline's.
StackRow stack_row(
    const std::string& name,
    const StackMeasurement& run,
    const StackMeasurement& baseline);

/// For the terminal: the head, then a line as each row is there.
std::string stack_head();
std::string stack_line(const StackRow& row);

std::string stack_markdown(const std::vector<StackRow>& rows);
/// StackRow's members, one row a line, names quoted.
std::string stack_csv(const std::vector<StackRow>& rows);

} // namespace palimpsest
