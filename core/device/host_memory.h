#pragma once

// How much memory this process may use on this machine: the machine's, or its control group's where
// that is less.
//
//   HostMemory memory = host_memory("/");
//   fmt::print("{} of {} free\n", format_bytes(memory.available), format_bytes(memory.total));

#include <cstdint>
#include <filesystem>

namespace palimpsest {

struct HostMemory {
  int64_t total; // bytes
  int64_t available; // bytes, without swapping; page cache that can be dropped counts as available
};

/// Reads proc/meminfo, proc/self/cgroup and sys/fs/cgroup (version 1 and 2, every enclosing group)
/// under `root`, which is "/" but in tests. Throws EnvironmentError when proc/meminfo cannot be
/// read; a missing control group limits nothing.
HostMemory host_memory(const std::filesystem::path& root);

} // namespace palimpsest
