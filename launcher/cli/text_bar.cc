#include <palimpsest/launcher/cli/text_bar.h>

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <utility>

namespace palimpsest {

// As Progress decides it.
TextBar::TextBar(std::ostream& out, std::function<double()> clock)
    : out_(out), clock_(std::move(clock)),
      terminal_(&out == &std::cout && isatty(1) == 1 && isatty(2) == 1), begin_(clock_()),
      shown_(begin_), part_begin_(begin_) {}

double TextBar::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void TextBar::show(double done, const std::string& text) {
  constexpr int kWidth = 28;
  constexpr double kSecondsBetweenBars = 0.1;
  constexpr double kSecondsBetweenLines = 30;
  const double now = clock_();
  if (done < done_) {
    part_begin_ = now;
  }
  done_ = done;
  if (now - shown_ < (terminal_ ? kSecondsBetweenBars : kSecondsBetweenLines)) {
    return;
  }
  shown_ = now;
  const double left = done > 0 ? (now - part_begin_) * (1 - done) / done : 0.0;
  if (!terminal_) {
    out_ << fmt::format("{:.0f} %  {}  {:.0f} s left", 100 * done, text, left) << std::endl;
    return;
  }
  const auto filled = static_cast<size_t>(done * kWidth);
  out_ << fmt::format(
              "\r\033[K[{}{}] {:3.0f}%  {}  {:.0f} s left",
              std::string(filled, '#'),
              std::string(kWidth - filled, '.'),
              100 * done,
              text,
              left)
       << std::flush;
}

void TextBar::end() {
  if (terminal_) {
    out_ << "\r\033[K" << std::flush;
  }
}

} // namespace palimpsest
