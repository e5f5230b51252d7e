#pragma once

// The processes of a launch: the ranks, and beside each a small one that reports to the launcher
// (supervisor.h). Supervisors are children of the launcher, or of an mpirun that is its child.
//
//   RankProcesses ranks(plan, options, environment, listen_fd, mpirun_log);
//   while (!ranks.finished()) {
//     poll(...);                                       // SIGCHLD, ranks.event_fd()
//     for (const RankEvent& event : ranks.events()) ...
//   }

#include <palimpsest/core/base/files.h>
#include <palimpsest/launcher/launch/launch_plan.h>

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest {

/// A rank's start or end. Also the message of a rank's supervisor to the launcher, so plain data.
struct RankEvent {
  int rank; // kMpirun: mpirun itself ended, and with it ranks that could report nothing
  pid_t pid; // of the rank, which leads a process group of its own
  bool ended; // else: it was started
  int status; // as waitpid() gives it
  int64_t peak_rss; // most bytes that were resident in it; 0 where nobody could tell
};
inline constexpr int kMpirun = -1;

class RankProcesses {
 public:
  /// Starts them as `plan` says. Without mpirun each has torchrun's variables, and rank 0 inherits
  /// `listen_fd`; mpirun's own words go to `mpirun_log`.
  RankProcesses(
      const LaunchPlan& plan,
      const LaunchOptions& options,
      Environment environment,
      int listen_fd,
      const std::filesystem::path& mpirun_log);
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  /// Leaves nothing behind: kills what still runs.
  ~RankProcesses();

  /// Readable when a rank has started or ended; the end of mpirun is told by SIGCHLD.
  int event_fd() const {
    return reports_.get();
  }
  /// What happened since the last call.
  std::vector<RankEvent> events();
  /// Whether all processes are gone, mpirun too.
  bool finished() const;
  /// A signal to each running rank, and to none of its children.
  void signal(int number);
  /// SIGKILL to all ranks, with what they started. Called again, it spares nothing: the first time
  /// mpirun may remove its files.
  void kill_all();

 private:
  struct Rank {
    pid_t pid = 0; // 0: not started yet, or ended
    pid_t supervisor = 0; // 0: it is mpirun's child, or ended
    bool ended = false;
  };

  void start_supervisors(
      const LaunchPlan& plan,
      const std::vector<std::string>& command,
      const Environment& environment,
      int listen_fd);
  void kill_ranks();

  std::vector<Rank> ranks_;
  pid_t mpirun_ = 0; // 0: none, or ended
  FileDescriptor reports_;
  FileDescriptor report_; // kept open: supervisors open it by its path
  bool killed_ = false; // once
};

} // namespace palimpsest
