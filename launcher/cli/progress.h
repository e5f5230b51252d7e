#pragma once

// What people watch: a bar that is redrawn on a terminal, plain lines elsewhere.
//
//   Progress progress(run.batches().step_count(), /*every=*/1, std::cout, model_utilization(run));
//   run.train({&progress});
//   std::cout << progress.summary(run.full_report(), baseline_rss);

#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/utilization.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

namespace palimpsest {

class Progress final : public Observer {
 public:
  /// `every`: steps between lines where the output is no terminal; 0: nothing is printed. `clock`:
  /// seconds, of which only differences count.
  Progress(
      int64_t steps,
      int64_t every,
      std::ostream& out,
      Utilization mfu = unknown_utilization,
      std::function<double()> clock = steady_seconds);

  void step_end(const StepRecord& record) override;
  void evaluation_end(const EvaluationRecord& record) override;
  void note(const std::string& text) override;

  /// Ends the line of a bar that has not come to its end.
  void interrupt();

  /// UserError where all steps were skipped, so that nothing was learned.
  void require_update() const;

  /// The end of a run: losses, rate without evaluations, skipped steps, the predicted peak beside the measured one, and
  /// what of the process's memory was not tracked; nothing where no step was left. `baseline_rss`: bytes resident before
  /// the run.
  std::string summary(const PlanReport& report, int64_t baseline_rss) const;

 private:
  static double steady_seconds();
  double elapsed() const;
  std::string time_left(const StepRecord& record) const;
  std::string bar(const StepRecord& record) const;
  std::string line(const StepRecord& record) const;

  int64_t steps_;
  int64_t every_;
  std::ostream& out_;
  Utilization mfu_;
  std::function<double()> clock_;
  bool terminal_;
  double begin_;
  StepRecord first_;
  StepRecord last_;
  int64_t peak_device_bytes_ = 0;
  int64_t tokens_ = 0;
  double step_seconds_ = 0;
  double wait_seconds_ = 0; // of them, for data
  double evaluation_seconds_ = 0;
  double used_seconds_ = 0; // of them, what the model would take at the device's peak
  std::string evaluated_; // the last evaluation, in words
  int64_t done_ = 0;
  int64_t skipped_ = 0;
  int64_t not_finite_ = 0; // of the skipped ones; the others had no target
};

} // namespace palimpsest
