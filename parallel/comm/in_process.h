#pragma once

// Ranks as threads of one process: for tests, and to try a layout without a launcher.
//
//   std::vector<std::unique_ptr<Communicator>> world = in_process_world(4);
//   // one thread per rank: train(*world[rank]);
//
// Operands are published by pointer and copied once, to where they are wanted. Nothing runs by
// itself: whoever waits for an operation or polls it does what is left of its work, also for ranks
// that compute meanwhile. A communicator belongs to its rank's thread; abort() may come from any.
//
// An abort, a timeout or a mismatch (two ranks in different operations) ends all groups of the
// world: whatever waits there throws EnvironmentError, whoever caused the mismatch InternalError.

#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/parallel/comm/settings.h>

#include <memory>
#include <vector>

namespace palimpsest {

/// One communicator per rank, in rank order.
std::vector<std::unique_ptr<Communicator>> in_process_world(
    int size,
    const CommSettings& settings = {});

} // namespace palimpsest
