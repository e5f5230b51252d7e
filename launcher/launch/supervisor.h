#pragma once

// The process beside a rank of `palimpsest launch`: its parent. It tells the launcher when the rank
// starts and how it ends (mpirun tells neither which rank failed first nor its code in all cases),
// passes requests to stop on, hides the exit code of a stopped run from mpirun (which would kill the
// ranks that still save), and ends the rank, with what that has started, when mpirun or the launcher
// is gone.
//
//   supervise_rank(current_environment());   // forks; only the rank returns
//   return run_program(...);                 // the rank
//
// The rank is a fork and not a program of its own: the libraries are loaded once.

#include <palimpsest/launcher/launch/rank_environment.h>

namespace palimpsest {

/// Where supervisors write RankEvents: a path that the launcher opened for reading.
inline constexpr const char* kReportVariable = "PALIMPSEST_RANK_REPORT";

/// Returns in the rank alone, with its output where the launcher wants it; the supervisor ends by
/// _exit() with the rank's code (128+n for signal n, 0 for kStoppedExitCode). Must run before this
/// process has threads.
void supervise_rank(const Environment& environment);

} // namespace palimpsest
