#pragma once

// The mpirun of this machine: whose it is, and how to start ranks with it.
//
//   const MpiLauncher mpirun = find_mpirun(current_environment());
//   if (mpirun.kind != MpiKind::kNone) {
//     start(mpirun_command(mpirun, 4, {"/usr/bin/palimpsest", "train", "run.yaml"}));
//   }

#include <palimpsest/launcher/launch/rank_environment.h>

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

enum class MpiKind : uint8_t { kNone, kOpenMpi, kHydra, kIntel };

struct MpiLauncher {
  MpiKind kind = MpiKind::kNone;
  std::string path; // of mpirun; empty: none
  std::string description; // "Open MPI 4.1.4", or why there is none
};

/// Whose mpirun prints this for --version; kNone for one that we do not know how to use.
MpiKind mpi_kind(std::string_view version_text);

/// The first mpirun in PATH, asked for its version.
MpiLauncher find_mpirun(const Environment& environment);

/// The command line that starts `ranks` ranks of `command` on this host. Ranks are bound to nothing
/// (threads_per_rank() shares the processors) and may be more than there are processors.
std::vector<std::string> mpirun_command(
    const MpiLauncher& mpirun,
    int ranks,
    const std::vector<std::string>& command);

} // namespace palimpsest
