#pragma once

// MPI, called directly: Open MPI and MPICH.
//
//   if (has_mpi()) {
//     const MpiWorld world = mpi_world();    // started by mpirun or srun
//     world.engine->all_gather(...);
//   }
//
// MPI is initialised by the first call and ended when the process ends in order: after all ranks
// have come to their end, so that a launcher sees their exit codes. Where a world has failed, or a
// rank does not come within 5 s, it is not ended: the launcher then ends the other ranks.
//
// Operations get on only while somebody polls or waits.

#include <palimpsest/parallel/comm/engine.h>

#include <limits>
#include <memory>

namespace palimpsest {

/// Whether this build has MPI.
bool has_mpi();

struct MpiWorld {
  std::shared_ptr<Engine> engine; // null where the world has one rank
  int rank = 0;
  int size = 1;
  bool one_host = true;
};

/// Collective over all ranks that the launcher started. UserError in a build without MPI.
/// `largest_count`: elements that one argument of MPI may name; less only in tests.
MpiWorld mpi_world(int largest_count = std::numeric_limits<int>::max());

} // namespace palimpsest
