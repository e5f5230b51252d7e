#include <palimpsest/core/device/host_memory.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace palimpsest {

namespace {

namespace fs = std::filesystem;

/// The names of the two versions' files.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable; // a line of memory.stat
};
constexpr GroupFiles kVersion1 = {
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};

/// The number after `key` ("MemTotal:"), or at the start of the file where `key` is empty; empty
/// when it is not there.
std::optional<int64_t> read_number(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string word; key.empty() || in >> word;) {
    if (key.empty() || word == key) {
      int64_t value = 0;
      return in >> value ? std::optional(value) : std::nullopt; // "max" is no number and no limit
    }
  }
  return std::nullopt;
}

/// Lowers `memory` to what the group in `folder` allows.
void apply_group(const fs::path& folder, const GroupFiles& files, HostMemory& memory) {
  const auto limit = read_number(folder / files.limit, "");
  if (!limit) {
    return;
  }
  const int64_t used = read_number(folder / files.usage, "").value_or(0) -
      read_number(folder / "memory.stat", files.reclaimable).value_or(0);
  memory.total = std::min(memory.total, *limit);
  memory.available = std::min(memory.available, std::max<int64_t>(0, *limit - used));
}

} // namespace

HostMemory host_memory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const auto total = read_number(meminfo, "MemTotal:");
  const auto available = read_number(meminfo, "MemAvailable:");
  if (!total || !available) {
    throw EnvironmentError("cannot read MemTotal and MemAvailable from {}", meminfo.string());
  }
  HostMemory memory{*total * 1024, *available * 1024};

  // Lines "4:memory:/a/b" (version 1) and "0::/a/b" (version 2). In a container the path may not
  // exist below the mount, which then is the group itself: walking up ends there.
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const bool version2 = controllers == ",,";
    if (!version2 && controllers.find(",memory,") == std::string::npos) {
      continue;
    }
    const fs::path mount = root / (version2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    const GroupFiles& files = version2 ? kVersion2 : kVersion1;
    for (fs::path group = line.substr(second + 1);; group = group.parent_path()) {
      apply_group(mount / group.relative_path(), files, memory);
      if (!group.has_relative_path()) {
        break;
      }
    }
  }
  return memory;
}

} // namespace palimpsest
