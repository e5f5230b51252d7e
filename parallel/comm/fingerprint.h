#pragma once

// What must be alike on all ranks before the first step: config, model, build, first weights.
//
//   require_same(*world, {{"build", version}, {"config.training.seed", "42"}, {"weights", "9f3a…"}});
//   // config.training.seed differs: '42' on rank 0, 2, 3; '43' on rank 1

#include <palimpsest/core/contracts/communicator.h>

#include <map>
#include <string>

namespace palimpsest {

/// Collective. UserError on all ranks, the same on each, naming the first difference, its values and
/// which ranks have which; names and values of any length and number, also missing on some ranks.
void require_same(Communicator& communicator, const std::map<std::string, std::string>& mine);

} // namespace palimpsest
