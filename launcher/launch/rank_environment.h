#pragma once

// Which rank of how many this process is, and where rank 0 is to be met, whoever started it:
// palimpsest launch, torchrun, mpirun of Open MPI, MPICH or Intel MPI, srun, or nobody.
//
//   const RankEnvironment ranks = detect_rank(current_environment(), flags);
//   if (ranks.world_size > 1) {
//     std::cout << ranks.describe();
//   }
//
// The first complete source wins: flags, torchrun's variables, an MPI launcher's, a Slurm step's,
// else a single process. A source that is there in part, or two MPI launchers that contradict each
// other, are errors that name every variable: a job that starts with a guessed rank hangs, or
// trains several models at once.
//
// Sources: torchrun's environment variables (PyTorch's torch.distributed.run), Open MPI 4 and 5
// "Environment variables set for MPI applications", the PMI variables of MPICH's Hydra (Intel MPI's
// are the same), PMIx 4, and Slurm's srun(1), "output environment variables".

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace palimpsest {

/// Environment variables by name.
using Environment = std::map<std::string, std::string>;

/// The variables of this process.
Environment current_environment();

/// What the command line says; all of rank, world_size, local_rank, address and port, or none.
struct RankFlags {
  std::optional<int64_t> rank;
  std::optional<int64_t> world_size;
  std::optional<int64_t> local_rank;
  /// Where not given: world_size if `address` is this host's own (localhost, 127.*), else 1.
  std::optional<int64_t> local_world_size;
  std::optional<std::string> address;
  std::optional<int64_t> port;
};

/// Who told the rank.
enum class RankSource : uint8_t {
  kFlags,
  kTorchrun,
  kOpenMpi,
  kMpich,
  kIntelMpi,
  kPmix,
  kSlurm,
  kSingle,
};

/// "flags", "torchrun", "Open MPI", "MPICH", "Intel MPI", "PMIx", "Slurm", "single process".
const char* name_of(RankSource source);

/// Where a process stands among its ranks.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0; // among the ranks of this host, in rank order
  int local_world_size = 1; // ranks on this host

  /// Where rank 0 listens; empty and 0 where nobody said and nothing could be derived: then only MPI
  /// finds the others, and `sources` says what to set.
  std::string address;
  int port = 0;
  /// torchrun's own store listens there already: rank 0 too connects as a client.
  bool agent_store = false;
  /// How often torchrun has restarted the ranks: a prefix of keys in the agent's store.
  int attempt = 0;
  /// A socket that listens at `port`, inherited by rank 0 from `palimpsest launch`, so that no other
  /// process can take the port between its choice and its use; -1: none, rank 0 binds the port.
  int listen_fd = -1;

  RankSource how = RankSource::kSingle;
  /// Started by an MPI launcher: MPI_Init finds the other ranks.
  bool mpi_launched = false;
  /// The parent process is a launcher whose end should be this process's too (lifeline.h).
  bool parent_is_launcher = false;
  /// The process id of `palimpsest launch` on this host; 0: none.
  int launcher_pid = 0;

  /// Where each value came from: "rank" -> "RANK=3", "port" -> "derived from SLURM_JOB_ID=17".
  std::map<std::string, std::string> sources;

  /// "rank 3 of 8 (RANK=3), local rank 1 of 4 (LOCAL_RANK=1), meeting at 10.0.0.1:29500
  /// (MASTER_ADDR, MASTER_PORT), by torchrun", one item a line.
  std::string describe() const;
};

/// Pure: knows nothing but its arguments. Throws UserError naming every variable (with its value)
/// or flag of a source that is incomplete, no number, out of range or contradictory.
RankEnvironment detect_rank(const Environment& environment, const RankFlags& flags = {});

/// What `palimpsest launch` sets beyond torchrun's variables.
inline constexpr const char* kLauncherPidVariable = "PALIMPSEST_LAUNCHER_PID";
inline constexpr const char* kListenFdVariable = "PALIMPSEST_LISTEN_FD";

/// Removes everything that detect_rank() reads, so that a job's ranks cannot take the rank of the
/// process that starts them.
void remove_rank_variables(Environment& environment);

} // namespace palimpsest
