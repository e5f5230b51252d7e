#pragma once

// What `palimpsest launch` is about to do: which ranks on which hosts, how they are started and
// where they meet. `launch --dry-run` prints it.
//
//   LaunchOptions options{.ranks = 4, .command = {"/usr/bin/palimpsest", "train", "run.yaml"}};
//   const LaunchPlan plan = plan_launch(options, current_environment());
//   std::cout << plan.describe(options);

#include <palimpsest/launcher/launch/mpirun.h>
#include <palimpsest/launcher/launch/rank_environment.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest {

/// What the user asked for.
struct LaunchOptions {
  int ranks = 0; // 0: one for each slot of the hostfile
  std::filesystem::path hostfile; // empty: this host
  std::string include; // filters of the hostfile (host_list.h)
  std::string exclude;
  int port = 0; // 0: MASTER_PORT, else a free one
  /// Why mpirun is not to be used; empty: it is, where there is one that we know.
  std::string no_mpirun;
  std::filesystem::path log_folder;
  /// How long ranks may take to save and end once they were asked to.
  std::chrono::seconds grace{120};

  /// A rank's program and its arguments.
  std::vector<std::string> command;
  /// Inserted behind the program where mpirun starts it: makes it call supervise_rank().
  std::vector<std::string> as_rank;
};

struct PlannedRank {
  std::string host;
  int local_rank;
  int slot; // of its host, as in the hostfile
};

struct LaunchPlan {
  std::vector<PlannedRank> ranks; // by rank
  std::string this_host;
  MpiLauncher mpirun; // kNone: own processes
  std::string world_source;
  std::string hosts_source;
  std::string address;
  std::string address_source;
  int port; // 0: found at the start
  std::string port_source;
  /// CUDA_VISIBLE_DEVICES of this host's ranks; empty: as it is. Set where filters chose slots.
  std::string visible_devices;

  int world_size() const {
    return static_cast<int>(ranks.size());
  }
  /// The ranks that are not on this host.
  bool is_remote(const PlannedRank& rank) const {
    return rank.host != this_host;
  }
  /// Hosts, ranks, address, port and the source of each, threads, logs and the command.
  std::string describe(const LaunchOptions& options) const;
};

/// UserError where hosts, slots and number of ranks do not go together, or where this process is
/// itself one of several ranks.
LaunchPlan plan_launch(const LaunchOptions& options, const Environment& environment);

/// The file that a rank's output goes to: FOLDER/rank-0003.log.
std::filesystem::path log_of(const std::filesystem::path& folder, int rank);

} // namespace palimpsest
