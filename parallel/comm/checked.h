#pragma once

// A debug mode: before each collective the ranks compare what they are about to do.
//
//   world = checked(std::move(world));
//   // "rank 1 calls all_reduce (sum) of 4 Float where rank 0 calls all_gather of 4 Float"
//
// Costs one small all_gather before each operation, and takes away what overlap there was: every
// operation begins when all ranks have come to it. Transfers between two ranks pass as they are.

#include <palimpsest/core/contracts/communicator.h>

#include <memory>

namespace palimpsest {

/// Operations throw when they are issued: InternalError on all ranks where ranks differ; the first difference is named by
/// rank; EnvironmentError where a rank does not come. Split groups are checked too.
std::unique_ptr<Communicator> checked(std::unique_ptr<Communicator> communicator);

} // namespace palimpsest
