#include <palimpsest/memory/report/report.h>

#include <palimpsest/core/base/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>

namespace palimpsest {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// To a millionth of a second, which keeps a page of many operations small.
double rounded(double seconds) {
  return std::round(seconds * 1e6) / 1e6;
}

template <typename Rows, typename Get>
Json column(const Rows& rows, Get get) {
  Json values = Json::array();
  for (const auto& row : rows) {
    values.push_back(get(row));
  }
  return values;
}

Json categories_json(const std::vector<ReportOp>& ops) {
  Json bytes = Json::object();
  for (int number = 0; number < kPlanCategories; ++number) {
    const auto category = static_cast<PlanCategory>(number);
    if (std::ranges::any_of(ops, [&](const ReportOp& op) { return op.bytes[category] != 0; })) {
      bytes[std::string(to_text(category))] =
          column(ops, [&](const ReportOp& op) { return op.bytes[category]; });
    }
  }
  return bytes;
}

/// By column, so that names of fields are not repeated for each operation.
Json ops_json(const Report& report) {
  const std::vector<ReportOp>& ops = report.ops;
  Json subjects = Json::array();
  std::map<std::string, size_t> numbers;
  const auto number = [&](const std::string& subject) {
    const auto [entry, fresh] = numbers.try_emplace(subject, numbers.size());
    if (fresh) {
      subjects.push_back(subject);
    }
    return entry->second;
  };
  Json json = Json::object();
  json["text"] = column(ops, [](const ReportOp& op) { return op.text; });
  json["kind"] = column(ops, [](const ReportOp& op) { return op.kind; });
  json["subject"] = column(ops, [&](const ReportOp& op) { return number(op.subject); });
  json["subjects"] = std::move(subjects);
  json["lane"] =
      column(ops, [](const ReportOp& op) { return op.lane ? static_cast<int>(*op.lane) : -1; });
  json["begin_s"] = column(ops, [](const ReportOp& op) { return rounded(op.begin_s); });
  json["end_s"] = column(ops, [](const ReportOp& op) { return rounded(op.end_s); });
  json["bytes"] = categories_json(ops);
  if (!report.measured.empty()) {
    const auto& measured = report.measured;
    json["measured"] = {
        {"begin_s", column(measured, [](const MeasuredOp& op) { return rounded(op.begin_s); })},
        {"end_s", column(measured, [](const MeasuredOp& op) { return rounded(op.end_s); })},
        {"bytes", column(measured, [](const MeasuredOp& op) { return op.bytes; })}};
  }
  return json;
}

Json summary_json(const ReportSummary& summary) {
  return {
      {"predicted_peak_bytes", or_null(summary.predicted_peak_bytes)},
      {"measured_peak_bytes", or_null(summary.measured_peak_bytes)},
      {"peak_rss_bytes", or_null(summary.peak_rss_bytes)},
      {"predicted_step_s", or_null(summary.predicted_step_s)},
      {"measured_step_s", or_null(summary.measured_step_s)},
      {"tokens_per_s", or_null(summary.tokens_per_s)},
      {"recompute_share", or_null(summary.recompute_share)}};
}

Json course_json(const Course& course) {
  const auto& steps = course.steps;
  const auto& evaluations = course.evaluations;
  Json json = Json::object();
  json["every"] = course.every;
  json["step"] = column(steps, [](const CourseStep& step) { return step.step; });
  json["loss"] = column(steps, [](const CourseStep& step) { return or_null(step.loss); });
  json["grad_norm"] = column(steps, [](const CourseStep& step) { return or_null(step.grad_norm); });
  json["learning_rate"] = column(steps, [](const CourseStep& step) { return step.learning_rate; });
  json["tokens_per_s"] = column(steps, [](const CourseStep& step) { return step.tokens_per_s; });
  json["skipped"] = column(steps, [](const CourseStep& step) { return step.skipped; });
  json["evaluations"] = {
      {"step", column(evaluations, [](const CourseEvaluation& each) { return each.step; })},
      {"loss",
       column(evaluations, [](const CourseEvaluation& each) { return or_null(each.loss); })},
      {"perplexity",
       column(evaluations, [](const CourseEvaluation& each) { return or_null(each.perplexity); })},
      {"best", column(evaluations, [](const CourseEvaluation& each) { return each.best; })}};
  return json;
}

Json stack_json(const StackRow& row) {
  return {
      {"name", row.name},
      {"peak_device_bytes", row.peak_device_bytes},
      {"predicted_peak_bytes", row.predicted_peak_bytes},
      {"peak_host_bytes", row.peak_host_bytes},
      {"peak_disk_bytes", row.peak_disk_bytes},
      {"peak_rss_bytes", row.peak_rss_bytes},
      {"percent", row.percent},
      {"step_time_s", row.step_time_s},
      {"tokens_per_s", row.tokens_per_s},
      {"recompute_share", row.recompute_share},
      {"loss_difference", row.loss_difference},
      {"grad_norm_difference", row.grad_norm_difference}};
}

/// Names come from the user's files, in whatever encoding.
std::string text_of(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

} // namespace

std::string to_json(const Report& report) {
  check(
      report.measured.empty() || report.measured.size() == report.ops.size(),
      "{} measured of {} operations",
      report.measured.size(),
      report.ops.size());
  Json json = Json::object();
  json["kind"] = report.kind;
  json["title"] = report.title;
  json["version"] = report.version;
  json["device"] = report.device;
  json["budget_bytes"] = or_null(report.budget_bytes);
  json["rank"] = report.rank;
  json["facts"] = column(report.facts, [](const auto& fact) {
    return Json::array({fact.first, fact.second});
  });
  json["config"] = report.config;
  json["summary"] = summary_json(report.summary);
  json["course"] = course_json(report.course);
  Json lanes = Json::array();
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes.push_back(to_text(static_cast<Lane>(lane)));
  }
  json["lanes"] = std::move(lanes);
  json["ops"] = ops_json(report);
  json["layers"] = column(report.layers, [](const ReportLayer& layer) {
    return Json{
        {"name", layer.name},
        {"choice", layer.choice},
        {"bytes", layer.bytes},
        {"full_bytes", layer.full_bytes},
        {"seconds", layer.seconds}};
  });
  json["planners"] = column(report.planners, [](const PlannerPoint& point) {
    return Json{
        {"planner", point.planner},
        {"setting", point.setting},
        {"peak_bytes", point.peak_bytes},
        {"seconds", point.seconds},
        {"chosen", point.chosen}};
  });
  json["stack"] = column(report.stack, stack_json);
  return text_of(json);
}

std::string to_json(const std::vector<StackRow>& rows) {
  return text_of(column(rows, stack_json), 2) + "\n";
}

} // namespace palimpsest
