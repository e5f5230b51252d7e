#pragma once

// A polite end: SIGTERM, SIGINT or SIGUSR1 to a rank sets a flag and does nothing else. The run looks
// at it while blocks are measured, at step borders and between two micro-batches of an evaluation,
// lets all ranks decide together, saves what was done, and exits with kStoppedExitCode.
//
//   StopRequest stop;                                  // once, early, in main's thread
//   while (...) {
//     train_step();
//     if (all_reduce_max(stop.requested())) {          // one decision of all ranks
//       save();
//       return kStoppedExitCode;
//     }
//   }
//
// Whoever sends the signal: `palimpsest launch` (SIGTERM to each rank), torchrun and Slurm
// (SIGTERM), a terminal (SIGINT). Open MPI's mpirun kills its ranks two seconds after a SIGTERM or
// SIGINT of its own but forwards SIGUSR1. A second SIGTERM or SIGINT, whichever came first, ends the
// process at once, unless it comes so soon that it may be the first one again (a SIGTERM within five
// seconds, a SIGINT within half a second).

#include <palimpsest/launcher/launch/signal_stack.h>

#include <csignal>

namespace palimpsest {

/// The exit code of a run that was asked to stop, saved and ended: EX_TEMPFAIL of sysexits.h, "try
/// again later". It is neither success (the run is not finished, so a job chain must not go on), nor
/// a failure's 1, 2 or 70, nor 128+n, which says that a signal killed the process and nothing was
/// saved. A scheduler's requeue rule can name it.
inline constexpr int kStoppedExitCode = 75;

/// Handlers for as long as it lives; afterwards the old ones. One at a time in a process, in main's
/// thread. A signal that the process was started to ignore stays ignored.
class StopRequest {
 public:
  StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  ~StopRequest();

  /// Whether a signal came since the handlers are there. Safe from any thread, costs a load.
  bool requested() const;

  /// The first signal that came; 0: none.
  int signal() const;

 private:
  SignalStack stack_;
  struct sigaction previous_[3];
};

} // namespace palimpsest
