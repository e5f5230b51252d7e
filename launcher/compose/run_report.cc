#include <palimpsest/launcher/compose/run_report.h>

#include <palimpsest/core/config/show.h>
#include <palimpsest/core/device/device.h>
#include <palimpsest/core/plan/timeline.h>
#include <palimpsest/launcher/compose/planner_curve.h>
#include <palimpsest/memory/report/step_report.h>

#include <fmt/format.h>

#include <utility>

namespace palimpsest {

Report plan_report(Run& run, const std::string& name, RunFacts facts) {
  Report report{.kind = "plan", .title = name};
  report.version = PALIMPSEST_VERSION;
  report.device = Device::cpu().name();
  report.budget_bytes = run.plans().budget();
  report.rank = run.ranks().rank();
  report.facts = std::move(facts);
  report.config = config_text(run.config(), run.ranks().size());
  const PlannedStep& step = run.full_plan();
  const Plans plans{step.plan};
  add_step(
      report, step.job, step.plan, trace(spread(plans, step.job.mesh()), step.job, report.rank));
  report.summary.predicted_peak_bytes = run.full_report().peak(TierId::kDevice);
  report.planners = planner_curve(
      run.plans(), run.micro_batches(), run.config().activation_checkpointing().policy());
  return report;
}

RunReport::RunReport(const ReportFiles& files, const std::filesystem::path& config, Run& run)
    : name_(config.filename()), run_(run), trace_(run.memory(), run.micro_batches()) {
  if (!files.html.empty()) {
    html_.emplace(files.html);
  }
  if (!files.json.empty()) {
    json_.emplace(files.json);
  }
}

void RunReport::write(RunFacts facts) {
  Report report = plan_report(run_, name_, std::move(facts));
  report.kind = "train";
  report.course = read_course(run_.output() / "metrics.jsonl");
  if (trace_.last().size() == report.ops.size()) {
    const StepRecord& record = trace_.record();
    add_measured(report, trace_.last());
    report.title += fmt::format(", step {}", record.step);
    report.summary.measured_peak_bytes = record.peak_device_bytes;
    report.summary.peak_rss_bytes = record.peak_rss_bytes;
    report.summary.measured_step_s = record.step_time_s;
    report.summary.tokens_per_s = record.tokens_per_s;
  }
  if (html_) {
    html_->write(to_html(report));
    html_->commit();
  }
  if (json_) {
    json_->write(to_json(report) + "\n");
    json_->commit();
  }
}

} // namespace palimpsest
