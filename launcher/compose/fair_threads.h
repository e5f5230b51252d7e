#pragma once

// How many threads each rank of a run computes with.
//
//   here.threads = fair_threads(*world);

#include <palimpsest/core/contracts/communicator.h>

namespace palimpsest {

/// This rank's share of its host's processors, whoever has bound what: of those that its affinity
/// mask allows, divided among the host's ranks that may run on them (launch/threads.h). At least 1.
/// Collective.
int fair_threads(Communicator& world);

} // namespace palimpsest
