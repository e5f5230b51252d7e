#include <palimpsest/launcher/cli/progress.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>

namespace palimpsest {
namespace {

constexpr int kBarWidth = 28;

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

} // namespace

// Open MPI gives a rank a terminal as its standard output, wherever mpirun's own goes, but none as
// its standard error.
Progress::Progress(int64_t steps, int64_t every, std::ostream& out)
    : steps_(steps), every_(every), out_(out),
      terminal_(&out == &std::cout && isatty(1) == 1 && isatty(2) == 1) {}

void Progress::step_end(const StepRecord& record) {
  if (first_.step == 0) {
    first_ = record;
  }
  last_ = record;
  peak_device_bytes_ = std::max(peak_device_bytes_, record.peak_device_bytes);
  tokens_ += record.tokens;
  ++done_;
  skipped_ += record.skipped ? 1 : 0;
  const bool finite = std::isfinite(record.loss) && std::isfinite(record.grad_norm);
  not_finite_ += record.skipped && !finite ? 1 : 0;
  const bool end = record.step == steps_;
  if (every_ == 0) {
    return;
  }
  if (terminal_) {
    out_ << "\r\033[K" << bar(record) << (end ? "\n" : "") << std::flush;
  } else if (end || record.step == 1 || record.step % every_ == 0) {
    out_ << line(record) << std::endl;
  }
}

void Progress::note(const std::string& text) {
  out_ << (terminal_ ? "\r\033[K" : "") << text << std::endl;
}

void Progress::interrupt() {
  if (terminal_ && every_ != 0 && last_.step > 0 && last_.step < steps_) {
    out_ << std::endl;
  }
}

void Progress::require_update() const {
  if (done_ == 0 || skipped_ < done_) {
    return;
  }
  throw UserError(
      "training: nothing was learned in {}: {} had a loss or gradient that is not finite, {} no "
      "target; no model is written; {}",
      counted(done_, "step"),
      not_finite_,
      skipped_ - not_finite_,
      not_finite_ > 0 ? "check the model's weights and model.initializer_range"
                      : "check the labels");
}

std::string Progress::bar(const StepRecord& record) const {
  const double done = static_cast<double>(record.step) / static_cast<double>(steps_);
  const int eighths = static_cast<int>(done * kBarWidth * 8);
  static constexpr const char* kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string filled;
  for (int cell = 0; cell < eighths / 8; ++cell) {
    filled += "█";
  }
  const bool partial = eighths % 8 != 0;
  filled += kParts[eighths % 8];
  const std::string rest(static_cast<size_t>(kBarWidth - eighths / 8 - (partial ? 1 : 0)), ' ');
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const double left =
      elapsed / static_cast<double>(done_) * static_cast<double>(steps_ - record.step);
  return fmt::format(
      "{:3.0f}% |{}{}| {}/{}  loss {:.4f}  {:.0f} tokens/s  {} < {}",
      done * 100,
      filled,
      rest,
      record.step,
      steps_,
      record.loss,
      record.tokens_per_s,
      clock_text(elapsed),
      clock_text(left));
}

std::string Progress::line(const StepRecord& record) const {
  return fmt::format(
      "step {}/{}  loss {:.4f}  norm {:.3f}  rate {:.3g}  {:.0f} tokens/s  peak {}{}",
      record.step,
      steps_,
      record.loss,
      record.grad_norm,
      record.learning_rate,
      record.tokens_per_s,
      format_bytes(record.peak_device_bytes),
      record.skipped ? "  SKIPPED" : "");
}

std::string Progress::summary(const PlanReport& report, int64_t baseline_rss) const {
  if (done_ == 0) {
    return fmt::format("nothing left to do after {}\n", counted(steps_, "step"));
  }
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const int64_t predicted = report.peak(TierId::kDevice);
  std::string text = fmt::format(
      "{} in {}, {:.0f} tokens/s; loss {:.4f} -> {:.4f}\n"
      "peak: {} measured, {} predicted ({:+.1f} %); process {} resident, {} of it before the run "
      "and {} not tracked\n",
      counted(done_, "step"),
      clock_text(elapsed),
      static_cast<double>(tokens_) / elapsed,
      first_.loss,
      last_.loss,
      format_bytes(peak_device_bytes_),
      format_bytes(predicted),
      100.0 * static_cast<double>(peak_device_bytes_ - predicted) / static_cast<double>(predicted),
      format_bytes(last_.peak_rss_bytes),
      format_bytes(baseline_rss),
      format_bytes(std::max<int64_t>(0, last_.peak_rss_bytes - baseline_rss - peak_device_bytes_)));
  if (skipped_ > 0) {
    text += fmt::format(
        "warning: {} of {} skipped: {} with a loss or gradient that is not finite, {} "
        "without a target\n",
        skipped_,
        counted(done_, "step"),
        not_finite_,
        skipped_ - not_finite_);
  }
  return text;
}

} // namespace palimpsest
