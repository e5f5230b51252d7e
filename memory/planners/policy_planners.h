#pragma once

// The policies of memory/recompute as planners of chains: each at its fastest setting that fits.
//
//   ChainPlan plan = policy_planner("uniform", "...").plan(chain, budget);   // the best number of segments
//
// A layer is a stage. Settings are numbers of segments, layers a segment, or kept layers; full and
// lean tapes; whether the last segment keeps its tapes.

#include <palimpsest/memory/planners/planner.h>

#include <string_view>

namespace palimpsest {

/// `policy`: a name of memory/recompute/policies.h.
Planner policy_planner(std::string_view policy, std::string_view help);

} // namespace palimpsest
