#pragma once

// What a plan, a run or a comparison of techniques tells, as plain data; and the page that shows it.
//
//   Report report{.kind = "plan", .title = "run.yaml"};
//   add_timeline(report, job, plan, trace(world, job, 0));       // step_report.h
//   write_file_atomically("report.html", to_html(report));
//
// The page is one file: it fetches nothing, and draws only what to_json() gives it. What is unset
// or empty is not shown.

#include <palimpsest/core/plan/op.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/memory/report/course.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {

/// One operation of the step, on one rank.
struct ReportOp {
  std::string text; ///< as the plan prints it
  std::string kind; ///< the operation's name in small letters; "recompute": a FORWARD again
  std::string subject; ///< the block, unit or slot's owner by name; may be empty
  std::optional<Lane> lane; ///< none: it takes no time
  double begin_s = 0; ///< predicted, from the step's start
  double end_s = 0;
  EnumArray<PlanCategory, int64_t, kPlanCategories> bytes{}; ///< predicted, on the device
};

/// The same operation as it ran.
struct MeasuredOp {
  double begin_s = 0;
  double end_s = 0;
  int64_t bytes = 0; ///< most tracked bytes during it
};

/// What becomes of a layer's activations between its forward and its backward.
struct ReportLayer {
  std::string name;
  std::string choice; ///< "kept", "lean", "recomputed", or "mixed" where its blocks differ
  int64_t bytes = 0; ///< of the tapes and inner values that it leaves, of one micro-batch
  int64_t full_bytes = 0; ///< if it kept all
  double seconds = 0; ///< spent again for it, a micro-batch
};

/// One setting of one planner.
struct PlannerPoint {
  std::string planner;
  std::string setting; ///< "n 4"; empty where there is none
  int64_t peak_bytes = 0;
  double seconds = 0;
  bool chosen = false; ///< the one that the run uses
};

/// One row of the memory benchmark: the techniques so far, and what they cost and save.
struct StackRow {
  std::string name;
  int64_t peak_device_bytes = 0;
  int64_t predicted_peak_bytes = 0;
  int64_t peak_host_bytes = 0;
  int64_t peak_disk_bytes = 0;
  int64_t peak_rss_bytes = 0;
  double percent = 0; ///< peak_device_bytes over the first row's
  double step_time_s = 0; ///< median
  double tokens_per_s = 0; ///< median
  double recompute_share = 0; ///< of all FLOPs
  double loss_difference = 0; ///< greatest over the steps, relative to the first row
  double grad_norm_difference = 0;
};

struct ReportSummary {
  std::optional<int64_t> predicted_peak_bytes;
  std::optional<int64_t> measured_peak_bytes;
  std::optional<int64_t> peak_rss_bytes;
  std::optional<double> predicted_step_s;
  std::optional<double> measured_step_s;
  std::optional<double> tokens_per_s;
  std::optional<double> recompute_share; ///< of all FLOPs
};

struct Report {
  std::string kind; ///< "plan", "train" or "stack"
  std::string title;
  std::string version; ///< of the program
  std::string device; ///< its name
  std::optional<int64_t> budget_bytes; ///< of the device
  int rank = 0; ///< whose operations these are
  std::vector<std::pair<std::string, std::string>> facts; ///< "model", "llama, 32 M parameters"
  std::string config; ///< all settings, as YAML
  ReportSummary summary;
  Course course; ///< of a run: its steps and evaluations so far
  std::vector<ReportOp> ops;
  std::vector<MeasuredOp> measured; ///< one for each of ops, or none
  std::vector<ReportLayer> layers;
  std::vector<PlannerPoint> planners;
  std::vector<StackRow> stack;
};

/// One JSON object; docs/report.md lists its fields. Numbers that are not finite are null.
std::string to_json(const Report& report);

/// The rows alone: an array of objects with StackRow's members.
std::string to_json(const std::vector<StackRow>& rows);

/// The page: HTML with its style, its script and the report's JSON inside.
std::string to_html(const Report& report);

} // namespace palimpsest
