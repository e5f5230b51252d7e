#pragma once

// Everybody's text on every rank.
//
//   const std::vector<std::string> hosts = all_texts(*world, host_name());   // hosts[2]: rank 2's

#include <palimpsest/core/contracts/communicator.h>

#include <string>
#include <vector>

namespace palimpsest {

/// Collective. By rank; of any length, also none and also different ones. A text holds no zero byte:
/// it would end there.
std::vector<std::string> all_texts(Communicator& ranks, const std::string& mine);

} // namespace palimpsest
