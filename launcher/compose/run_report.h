#pragma once

// A run as a report (memory/report/report.h): what `plan --html` and `train --html` write.
//
//   Report report = plan_report(run, "run.yaml", facts);
//   write_file_atomically("plan.html", to_html(report));
//   RunReport training({.html = "report.html"}, "run.yaml", run);
//   run.train({&training.observer()});
//   training.write(facts);

#include <palimpsest/core/base/files.h>
#include <palimpsest/launcher/compose/run.h>
#include <palimpsest/memory/report/report.h>
#include <palimpsest/memory/track/step_trace.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {

/// Names and texts, one a line.
using RunFacts = std::vector<std::pair<std::string, std::string>>;

/// The full step as it is planned on this rank. `name`: of the config file; `facts`: of the run.
Report plan_report(Run& run, const std::string& name, RunFacts facts);

/// Where a report goes: as a page, as its data; empty: not at all.
struct ReportFiles {
  std::string html;
  std::string json;

  bool wanted() const {
    return !html.empty() || !json.empty();
  }
};

/// The report of a run that trains: what the last full step held and took, beside its plan.
class RunReport {
 public:
  /// Opens the files, so an EnvironmentError where one cannot be written comes before the first
  /// step. `config`: the config's file. `run` outlives this.
  RunReport(const ReportFiles& files, const std::filesystem::path& config, Run& run);

  /// To be given to Run::train().
  Observer& observer() {
    return trace_;
  }
  /// After it. Where no full step ran, or the plan has changed since, the plan alone is shown.
  void write(RunFacts facts);

 private:
  std::optional<AtomicFile> html_;
  std::optional<AtomicFile> json_;
  std::string name_;
  Run& run_;
  StepTrace trace_;
};

} // namespace palimpsest
