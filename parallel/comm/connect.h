#pragma once

// The world of this rank, however its ranks were started.
//
//   auto status = std::make_shared<RankStatus>();
//   std::unique_ptr<Communicator> world = connect(
//       {.rank = 2, .world_size = 4, .address = "node-0", .port = 29500, .status = status});
//
// Tensors on CUDA devices go through NCCL; tensors on the CPU through MPI where an MPI launcher
// started the ranks and this build has MPI, else through Gloo over TCP.

#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/parallel/comm/rank_status.h>

#include <chrono>
#include <memory>
#include <string>

namespace palimpsest {

struct WorldSettings {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0; // among the ranks of this host: the index of its CUDA device

  /// auto, mpi, gloo, nccl (with gloo for CPU tensors), or in_process (one rank only).
  std::string backend = "auto";
  bool cuda = false; // the ranks' tensors are on CUDA devices

  /// Where rank 0 holds the store that ranks meet at; MPI needs none.
  std::string address;
  int port = 0;
  int listen_fd = -1; // rank 0: a socket that listens at the port already; -1: none
  bool agent_store = false; // the launcher holds the store: rank 0 too connects to it
  int attempt = 0; // how often a launcher has restarted the ranks at this store
  bool mpi_launched = false;

  /// How long one operation waits for its peers, and how long ranks may take to meet.
  std::chrono::milliseconds timeout{60'000};
  std::chrono::milliseconds startup_timeout{300'000};

  /// How often a rank gives a sign of life; with very many ranks less often than that.
  std::chrono::milliseconds heartbeat{500};

  std::shared_ptr<RankStatus> status; // null: nobody says where this rank is
  bool checked = false; // compare operations over ranks before each (checked.h)
};

/// Collective over all ranks of the world. A world of one rank needs nobody and no library.
/// UserError where the settings cannot be served here: an unknown or missing backend, no address, a
/// port in use, a rank that somebody else has taken. EnvironmentError naming the ranks that did not
/// come in time.
std::unique_ptr<Communicator> connect(const WorldSettings& settings);

} // namespace palimpsest
