#pragma once

// How many threads a rank computes with, from the processors that it may run on.
//
//   int threads = threads_per_rank(allowed_processors().size(), ranks.local_world_size);
//
// Launchers differ in what they bind: `palimpsest launch` and torchrun bind nothing, so that all
// ranks of a host share one mask; Open MPI binds two ranks to a core each and more to a socket;
// Slurm as its administrator likes. Only the masks of all ranks of the host tell: see the second
// function.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

/// The numbers of the processors that this process may run on (its affinity mask), ascending.
std::vector<int> allowed_processors();

/// The fair share of one of `local_world_size` ranks that may all run on the same `processors`
/// processors: at least 1.
int threads_per_rank(int64_t processors, int64_t local_world_size);

/// The same where the masks of all ranks of the host are known, whoever bound what: each processor
/// counts for a rank as one over the number of ranks that may run on it. A rank bound to its own
/// four processors gets 4; two ranks bound to the same four get 2 each. At least 1.
int threads_per_rank(const std::vector<std::vector<int>>& local_masks, int local_rank);

/// What `train`, started alone, says where the machine has more devices than it will use: the
/// command that uses them all, or nothing for fewer than two. `arguments`: as given to the program,
/// "train", "run.yaml", ...; they are quoted for a shell where they must be.
std::optional<std::string> launch_advice(int gpu_count, const std::vector<std::string>& arguments);

/// The arguments as one line that a shell takes apart again.
std::string shell_line(const std::vector<std::string>& arguments);

} // namespace palimpsest
