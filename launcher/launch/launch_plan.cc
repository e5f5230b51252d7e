#include <palimpsest/launcher/launch/launch_plan.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/host.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/launcher/launch/host_list.h>
#include <palimpsest/launcher/launch/threads.h>

#include <fmt/ranges.h>

#include <charconv>
#include <iterator>
#include <optional>

namespace palimpsest {
namespace {

bool is_this_host(const std::string& name, const std::string& this_host) {
  return name == this_host || is_loopback(name) ||
      name == this_host.substr(0, this_host.find('.')) ||
      name.substr(0, name.find('.')) == this_host;
}

/// The slots that the options leave, on hosts in order.
std::vector<HostSlots> hosts_of(const LaunchOptions& options, const std::string& this_host) {
  const bool filtered = !options.include.empty() || !options.exclude.empty();
  if (options.hostfile.empty()) {
    if (filtered) {
      throw UserError("--include and --exclude choose from a hostfile: give --hostfile too");
    }
    HostSlots here = {this_host, {}};
    for (int slot = 0; slot < options.ranks; ++slot) {
      here.slots.push_back(slot);
    }
    return {here};
  }
  if (!options.include.empty() && !options.exclude.empty()) {
    throw UserError(
        "--include {} and --exclude {}: give one of them; it is taken from the whole hostfile",
        options.include,
        options.exclude);
  }
  std::vector<HostSlots> hosts = read_hostfile(options.hostfile);
  if (!options.include.empty()) {
    hosts = include_hosts(hosts, options.include);
  } else if (!options.exclude.empty()) {
    hosts = exclude_hosts(hosts, options.exclude);
  }
  return hosts;
}

std::vector<PlannedRank> place(
    const LaunchOptions& options,
    std::vector<HostSlots> hosts,
    const std::string& this_host) {
  std::vector<PlannedRank> ranks;
  std::vector<std::string> counts;
  std::optional<std::string> here; // this host's name in the hostfile
  for (HostSlots& host : hosts) {
    if (is_this_host(host.name, this_host)) {
      if (here) {
        throw UserError(
            "{}: {} and {} are the same host, this one; list it once",
            options.hostfile.string(),
            *here,
            host.name);
      }
      here = host.name;
      host.name = this_host;
    }
    counts.push_back(fmt::format("{}: {}", host.name, host.slots.size()));
    for (size_t i = 0; i < host.slots.size(); ++i) {
      ranks.push_back({host.name, static_cast<int>(i), host.slots[i]});
    }
  }
  const auto wanted = static_cast<size_t>(options.ranks);
  if (wanted > ranks.size()) {
    throw UserError(
        "-n {} is more than the {} slots of {} ({})",
        options.ranks,
        ranks.size(),
        options.hostfile.string(),
        fmt::join(counts, ", "));
  }
  if (wanted > 0) {
    ranks.resize(wanted);
  }
  return ranks;
}

/// CUDA_VISIBLE_DEVICES that makes local rank i use slot i of those that a filter chose.
std::string devices_of(const LaunchPlan& plan, const Environment& environment) {
  std::vector<std::string> visible;
  const auto current = environment.find("CUDA_VISIBLE_DEVICES");
  if (current != environment.end()) {
    std::string_view rest = current->second;
    while (!rest.empty()) {
      const size_t comma = rest.find(',');
      visible.emplace_back(rest.substr(0, comma));
      rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    }
  }
  std::vector<std::string> chosen;
  for (const PlannedRank& rank : plan.ranks) {
    if (plan.is_remote(rank)) {
      continue;
    }
    const auto slot = static_cast<size_t>(rank.slot);
    if (current != environment.end() && slot >= visible.size()) {
      throw UserError(
          "slot {} of {} is none of the {} devices of CUDA_VISIBLE_DEVICES={}",
          slot,
          rank.host,
          visible.size(),
          current->second);
    }
    chosen.push_back(current == environment.end() ? std::to_string(slot) : visible[slot]);
  }
  return fmt::format("{}", fmt::join(chosen, ","));
}

void choose_port(LaunchPlan& plan, const LaunchOptions& options, const Environment& environment) {
  const auto variable = environment.find("MASTER_PORT");
  if (options.port != 0) {
    plan.port = options.port;
    plan.port_source = "--master-port";
  } else if (variable != environment.end()) {
    const std::string& text = variable->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), plan.port);
    if (error != std::errc() || end != text.data() + text.size() || plan.port < 1 ||
        plan.port > 65535) {
      throw UserError("MASTER_PORT={}: not a port from 1 to 65535", text);
    }
    plan.port_source = "MASTER_PORT";
  } else {
    plan.port = 0;
    plan.port_source = "a free one, found at the start";
  }
}

} // namespace

std::filesystem::path log_of(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("rank-{:04}.log", rank);
}

LaunchPlan plan_launch(const LaunchOptions& options, const Environment& environment) {
  check(!options.command.empty(), "a launch without a command");
  Environment other = environment; // a meeting point alone is for the ranks to come
  other.erase("MASTER_ADDR");
  other.erase("MASTER_PORT");
  const RankEnvironment self = detect_rank(other);
  if (self.world_size > 1) {
    throw UserError(
        "launch starts ranks by itself but is itself rank {} of {} (started by {}): start it once, "
        "or start `palimpsest {}` there without launch",
        self.rank,
        self.world_size,
        name_of(self.how),
        options.command.size() > 1 ? options.command[1] : "train");
  }
  if (options.ranks < 1 && options.hostfile.empty()) {
    throw UserError("launch needs the number of ranks: -n 4, or --hostfile FILE");
  }
  LaunchPlan plan;
  plan.this_host = host_name();
  plan.ranks = place(options, hosts_of(options, plan.this_host), plan.this_host);
  plan.world_source = options.ranks > 0 ? "-n" : "the slots of " + options.hostfile.string();
  plan.hosts_source = options.hostfile.empty() ? "this host" : options.hostfile.string();
  bool remote = false;
  for (const PlannedRank& rank : plan.ranks) {
    remote |= plan.is_remote(rank);
  }
  plan.address = remote ? plan.ranks[0].host : "127.0.0.1";
  plan.address_source = remote ? "rank 0's host" : "all ranks are on this host";
  choose_port(plan, options, environment);
  if (!options.include.empty() || !options.exclude.empty()) {
    plan.hosts_source += options.include.empty() ? ", --exclude " + options.exclude
                                                 : ", --include " + options.include;
    plan.visible_devices = devices_of(plan, environment);
  }
  plan.mpirun.description = options.no_mpirun;
  if (options.no_mpirun.empty()) {
    plan.mpirun = find_mpirun(environment);
  }
  return plan;
}

std::string LaunchPlan::describe(const LaunchOptions& options) const {
  const bool by_mpirun = mpirun.kind != MpiKind::kNone;
  int local = 0;
  std::string rows;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const PlannedRank& rank = ranks[i];
    local += is_remote(rank) ? 0 : 1;
    rows += fmt::format(
        "rank {:<4} host {}, local rank {}, slot {}{}\n",
        i,
        rank.host,
        rank.local_rank,
        rank.slot,
        is_remote(rank) ? " (another host: launch cannot start it)" : "");
  }
  const auto processors = std::ssize(allowed_processors());
  std::string text = fmt::format(
      "ranks     {} ({})\n"
      "hosts     {}\n"
      "address   {} ({})\n"
      "port      {} ({})\n"
      "started   {} ({})\n",
      ranks.size(),
      world_source,
      hosts_source,
      address,
      address_source,
      port == 0 ? "-" : std::to_string(port),
      port_source,
      by_mpirun ? "by " + mpirun.path : "as own processes",
      mpirun.description);
  if (local > 0) {
    text += fmt::format(
        "threads   {} a rank ({} for {} of this host)\n",
        threads_per_rank(processors, local),
        counted(processors, "processor"),
        counted(local, "rank"));
  }
  if (!visible_devices.empty()) {
    text += fmt::format("devices   CUDA_VISIBLE_DEVICES={} (the chosen slots)\n", visible_devices);
  }
  text += fmt::format("logs      {}\n", log_of(options.log_folder, 0).string());
  text += "command   " + shell_line(options.command) + "\n";
  return text + rows;
}

} // namespace palimpsest
