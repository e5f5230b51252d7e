#pragma once

// What the ranks of `palimpsest launch` print: each to its own log, rank 0 on the screen too.
//
//   RankOutput output(folder, 4);                // in the launcher
//   output.tell(environment);                    // to the ranks, through their variables
//   ...                                          // poll output.polled(), output.serve(...)
//   redirect_output(environment, rank);          // in a rank, before it prints anything
//
// Ranks write to their logs themselves, so nothing that the launcher does can block or lose them.
// Rank 0 writes to channels of the launcher, which passes everything on to the screen and into the
// log; where the screen is a terminal the channel is one too (a pseudo-terminal of the same size),
// so that rank 0 draws its progress bar. Logs keep the last state of a redrawn line only.

#include <palimpsest/core/base/files.h>
#include <palimpsest/launcher/launch/rank_environment.h>

#include <poll.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// A log's text of a stream in which carriage returns redraw lines: whole lines as they end.
class LineFolder {
 public:
  /// The lines that `bytes` completes, each with its newline.
  std::string add(std::string_view bytes);
  /// What is left of an unfinished line.
  std::string rest() const {
    return line_;
  }

 private:
  std::string line_;
  bool returned_ = false; // a carriage return came, and nothing after it
};

/// The launcher's side.
class RankOutput {
 public:
  /// Creates the folder; logs that are there already go on. EnvironmentError where it takes no
  /// files.
  RankOutput(std::filesystem::path folder, int world_size);
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;
  ~RankOutput() = default;

  /// The variables from which redirect_output() knows where to write.
  void tell(Environment& environment) const;

  /// What to wait for, and what to do when poll() has filled it in. Never blocks: while the screen
  /// takes nothing, rank 0 waits as it would without a launcher.
  std::vector<pollfd> polled() const;
  void serve(const std::vector<pollfd>& polled);

  /// After the ranks' end: passes on what they left. A screen that takes nothing for two seconds is
  /// given up.
  void drain();

  /// The screen's size has changed.
  void resize();

  /// The last lines (at most 10) that a rank has written in this launch.
  std::string tail(int rank) const;

  /// Whether each line of `text` is among the last that went to the screen.
  bool is_on_screen(const std::string& text) const;

 private:
  struct Channel {
    FileDescriptor reader;
    FileDescriptor writer; // kept open: ranks open it by its path
    std::string path;
    int screen; // -1: it failed
    std::string pending; // read, not yet on the screen
    LineFolder lines;
  };

  Channel open_channel(int screen);
  bool take(Channel& channel); // false: nothing is there
  void show(Channel& channel);
  void log(const std::string& text) const;

  std::filesystem::path folder_;
  std::vector<int64_t> log_starts_; // by rank: bytes that were there before
  FileDescriptor log_; // rank 0's
  std::array<Channel, 2> channels_;
  std::string shown_; // the last that went to the screen
};

/// In a rank, before it prints: standard output and error to where the launcher's variables say,
/// standard input from nowhere. Does nothing without such variables.
void redirect_output(const Environment& environment, int rank);

} // namespace palimpsest
