#pragma once

// No orphans: a rank ends when the process that started it is gone, even if that was killed and
// could tell nobody.
//
//   const RankEnvironment ranks = detect_rank(current_environment());
//   Lifeline lifeline(launchers_of(ranks));     // early in main, kept until the end
//
// A thread sleeps in poll() on the launchers' process descriptors and kills this process when one
// of them ends. A shell that started a single process is no launcher: `nohup palimpsest train &`
// goes on after the shell's end.

#include <palimpsest/launcher/launch/rank_environment.h>

#include <sys/types.h>

#include <thread>
#include <vector>

namespace palimpsest {

/// The processes whose end must be this one's: the parent where it is a launcher, and `palimpsest
/// launch`. Empty for a single process and for ranks that were started by hand (flags).
std::vector<pid_t> launchers_of(const RankEnvironment& ranks);

/// Descriptors (pidfd) of processes, as something to poll.
class ProcessWatch {
 public:
  explicit ProcessWatch(std::vector<pid_t> processes);
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;
  ~ProcessWatch();

  /// Sleeps until one of the processes has ended, and returns its id; 0 where `wake_fd` (-1: none)
  /// became readable first. A process that was gone at the start has ended.
  pid_t wait(int wake_fd) const;

 private:
  std::vector<pid_t> processes_;
  std::vector<int> fds_; // -1: the kernel gives none, so that process is looked for now and then
};

/// Kills this process (SIGKILL, with a line on standard error before) when a launcher ends. The
/// destructor ends the watch and returns at once.
class Lifeline {
 public:
  explicit Lifeline(std::vector<pid_t> launchers);
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  ~Lifeline();

 private:
  ProcessWatch watch_;
  int wake_ = -1; // an eventfd: the destructor's word to the thread
  std::thread thread_;
};

} // namespace palimpsest
