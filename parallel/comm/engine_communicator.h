#pragma once

// A Communicator of any engine: checks operands, counts operations, adds in rank order, watches the
// time, and says who is missing.
//
//   std::unique_ptr<Communicator> world = engine_communicator(
//       std::move(engine), {.name = "world", .ranks = {0, 1, 2, 3}, .rank = 2}, settings, heartbeat);

#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/parallel/comm/engine.h>
#include <palimpsest/parallel/comm/heartbeat.h>
#include <palimpsest/parallel/comm/settings.h>

#include <memory>
#include <string>
#include <vector>

namespace palimpsest {

struct GroupMembers {
  std::string name; // for messages
  std::string id; // unique in the world, alike on all members; "" for the world itself
  std::vector<int> ranks; // of the world, in the group's order
  int rank = 0; // this rank's place in `ranks`
};

/// `engine` may be null where the group has one rank.
std::unique_ptr<Communicator> engine_communicator(
    std::shared_ptr<Engine> engine,
    GroupMembers members,
    const CommSettings& settings,
    std::shared_ptr<Heartbeat> heartbeat);

} // namespace palimpsest
