#include <palimpsest/launcher/cli/progress.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <optional>
#include <utility>

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

std::string mfu_text(std::optional<double> mfu) {
  return mfu ? fmt::format("  MFU {:.1f} %", 100 * *mfu) : "";
}

std::string scale_text(std::optional<double> scale) {
  return scale ? fmt::format("  scale {:g}", *scale) : "";
}

/// The sign of a NaN says nothing.
double shown(double number) {
  return std::isnan(number) ? std::abs(number) : number;
}

} // namespace

// Open MPI gives a rank a terminal as its standard output, wherever mpirun's own goes, but none as
// its standard error.
Progress::Progress(
    int64_t steps,
    int64_t every,
    std::ostream& out,
    Utilization mfu,
    std::function<double()> clock)
    : steps_(steps), every_(every), out_(out), mfu_(std::move(mfu)), clock_(std::move(clock)),
      terminal_(&out == &std::cout && isatty(1) == 1 && isatty(2) == 1), begin_(clock_()) {}

double Progress::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Progress::elapsed() const {
  return clock_() - begin_;
}

/// What the steps that are left take where they take what those of this run did, everything between
/// them included.
std::string Progress::time_left(const StepRecord& record) const {
  return clock_text(
      elapsed() / static_cast<double>(done_) * static_cast<double>(steps_ - record.step));
}

void Progress::step_end(const StepRecord& record) {
  if (first_.step == 0) {
    first_ = record;
  }
  last_ = record;
  peak_device_bytes_ = std::max(peak_device_bytes_, record.peak_device_bytes);
  tokens_ += record.tokens;
  step_seconds_ += record.step_time_s;
  wait_seconds_ += record.data_wait_s;
  used_seconds_ += mfu_(record).value_or(0) * record.step_time_s;
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

void Progress::evaluation_end(const EvaluationRecord& record) {
  evaluation_seconds_ += record.time_s;
  evaluated_ = fmt::format("loss {:.4f}", record.loss);
  if (record.perplexity) {
    evaluated_ += fmt::format(", perplexity {:.2f}", *record.perplexity);
  }
  evaluated_ += fmt::format(" after step {}", record.step);
  if (every_ != 0) {
    note(fmt::format(
        "evaluation: {}, {} of {} in {:.1f} s{}",
        evaluated_,
        counted(record.targets, "target"),
        counted(record.samples, "sample"),
        record.time_s,
        record.best ? ", the lowest so far" : ""));
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
      not_finite_ == 0 ? "check the labels"
          : last_.loss_scale && std::isfinite(last_.loss)
          ? "gradients overflow at the loss scale; lower precision.loss_scaling"
          : "check the model's weights and model.initializer_range");
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
  return fmt::format(
      "{:3.0f}% |{}{}| {}/{}  loss {:.4f}  {:.0f} tokens/s{}  {} < {}",
      done * 100,
      filled,
      rest,
      record.step,
      steps_,
      shown(record.loss),
      record.tokens_per_s,
      mfu_text(mfu_(record)),
      clock_text(elapsed()),
      time_left(record));
}

std::string Progress::line(const StepRecord& record) const {
  return fmt::format(
      "step {}/{}  loss {:.4f}  norm {:.3f}  rate {:.3g}{}  {:.0f} tokens/s{}  peak {}  eta {}{}",
      record.step,
      steps_,
      shown(record.loss),
      shown(record.grad_norm),
      record.learning_rate,
      scale_text(record.loss_scale),
      record.tokens_per_s,
      mfu_text(mfu_(record)),
      format_bytes(record.peak_device_bytes),
      time_left(record),
      record.skipped ? "  SKIPPED" : "");
}

std::string Progress::summary(const PlanReport& report, int64_t baseline_rss) const {
  if (done_ == 0) {
    return "";
  }
  const double seconds = elapsed() - evaluation_seconds_;
  const int64_t predicted = report.peak(TierId::kDevice);
  std::string text = fmt::format(
      "{} in {}, {:.0f} tokens/s, MFU {}; loss {:.4f} -> {:.4f}; {:.2f} % of the steps' time "
      "waiting for data\n"
      "peak: {} measured, {} predicted ({:+.1f} %); process {} resident, {} of it before the run "
      "and {} not tracked\n",
      counted(done_, "step"),
      clock_text(seconds),
      static_cast<double>(tokens_) / seconds,
      used_seconds_ > 0 ? fmt::format("{:.1f} %", 100 * used_seconds_ / step_seconds_)
                        : "n/a (logging.hardware names no peak)",
      first_.loss,
      last_.loss,
      step_seconds_ > 0 ? 100 * wait_seconds_ / step_seconds_ : 0.0,
      format_bytes(peak_device_bytes_),
      format_bytes(predicted),
      100.0 * static_cast<double>(peak_device_bytes_ - predicted) / static_cast<double>(predicted),
      format_bytes(last_.peak_rss_bytes),
      format_bytes(baseline_rss),
      format_bytes(std::max<int64_t>(0, last_.peak_rss_bytes - baseline_rss - peak_device_bytes_)));
  if (!evaluated_.empty()) {
    text += fmt::format(
        "evaluation: {}; {} spent on evaluations\n", evaluated_, clock_text(evaluation_seconds_));
  }
  if (last_.loss_scale) {
    text += fmt::format("loss scale {:g} in the last step\n", *last_.loss_scale);
  }
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
