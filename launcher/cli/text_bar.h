#pragma once

// How far a reading of text has come: a bar that is redrawn on a terminal, now and then a line
// elsewhere.
//
//   TextBar bar(std::cout);
//   bar.show(0.25, "chat.jsonl");
//   bar.end();

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>

namespace palimpsest {

class TextBar {
 public:
  /// `clock`: seconds, of which only differences count.
  explicit TextBar(std::ostream& out, std::function<double()> clock = steady_seconds);

  /// `done`: from 0 to 1; one that is smaller than before begins anew. `text`: what is read, or
  /// what it gave. The bar moves ten times a second; lines come twice a minute.
  void show(double done, const std::string& text);
  /// Clears the bar.
  void end();
  /// Since the beginning.
  double seconds() const {
    return clock_() - begin_;
  }

 private:
  static double steady_seconds();

  std::ostream& out_;
  std::function<double()> clock_;
  bool terminal_;
  double begin_;
  double shown_; // when
  double part_begin_;
  double done_ = 0;
};

} // namespace palimpsest
