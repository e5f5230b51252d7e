#pragma once

// Lists of hosts as people and schedulers write them.
//
//   expand_slurm_hosts("node[01-03,07],gpu-a[1-2]-b", "SLURM_STEP_NODELIST");   // six names
//   std::vector<HostSlots> hosts = read_hostfile("hosts.txt");     // h1 slots=4 | h1:4 | h1
//   hosts = include_hosts(hosts, "w0@w1:0,2");                     // all of w0, two slots of w1
//
// Sources: Slurm's hostlist expressions (scontrol show hostnames), hostfiles of Open MPI and
// DeepSpeed (name slots=n) and of MPICH's Hydra (name:n), DeepSpeed's --include and --exclude.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// A host and the numbers of its slots (places for a rank, as a rule one per device), ascending.
struct HostSlots {
  std::string name;
  std::vector<int> slots;

  bool operator==(const HostSlots&) const = default;
};

/// The names of a Slurm host list, in its order: "node[01-03,07],gpu-a[1-2]-b" keeps leading zeros
/// and takes several brackets per name. `what` (a variable, a flag) is for messages. UserError on
/// bad lists and on more than 65,536 names.
std::vector<std::string> expand_slurm_hosts(std::string_view list, const std::string& what);

/// The counts of a Slurm list: "2(x3),1" -> 2, 2, 2, 1.
std::vector<int> expand_slurm_counts(std::string_view list, const std::string& what);

/// The hosts of a hostfile, in its order. A line is `name`, `name slots=n` (also `max_slots=n`, which
/// only must not be below slots) or `name:n`; text from # on, blank lines, spaces, tabs and a
/// carriage return at the end mean nothing. A bare name is one slot, and its repetition one more, as
/// in schedulers' node files; a host with a stated number may be listed once. UserError with
/// file:line and the line's text; also where the file is missing or names no host.
std::vector<HostSlots> read_hostfile(const std::filesystem::path& path);

/// Only what `filter` names: hosts joined by @, each with all its slots or, after a colon, with the
/// listed ones: "w0@w1:0,2". The order stays that of `hosts`. UserError on an unknown or repeated
/// host or slot, naming those there are.
std::vector<HostSlots> include_hosts(
    const std::vector<HostSlots>& hosts,
    const std::string& filter);

/// All but what `filter` names, a host without slots goes; UserError also where nothing is left.
std::vector<HostSlots> exclude_hosts(
    const std::vector<HostSlots>& hosts,
    const std::string& filter);

} // namespace palimpsest
