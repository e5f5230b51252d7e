#pragma once

// Chains as JSON files, by the schema in chain.proto.
//
//   const CostChain chain = parse_chain(read_file(path), path);
//   write_file_atomically(path, chain_json(chain));

#include <palimpsest/core/plan/cost_chain.h>

#include <string>
#include <string_view>

namespace palimpsest {

/// Longer chains would take too long to plan, and too much memory.
inline constexpr int kMostStages = 2000;

/// `file` names it in messages. Throws UserError naming the first field that is unknown, missing, of
/// the wrong type or length, or not a whole number of bytes, with its line, and what
/// CostChain::validate() refuses.
CostChain parse_chain(std::string_view json, const std::string& file);

/// Of the model's blocks only the names are kept, where all have one.
std::string chain_json(const CostChain& chain);

} // namespace palimpsest
