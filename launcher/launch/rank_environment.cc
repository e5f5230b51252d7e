#include <palimpsest/launcher/launch/rank_environment.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/host.h>
#include <palimpsest/launcher/launch/host_list.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

extern char** environ;

namespace palimpsest {
namespace {

constexpr const char* kTorchrun[] =
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
// Open MPI 4 and 5.
constexpr const char* kOpenMpi[] = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE"};
// Hydra of MPICH and of Intel MPI.
constexpr const char* kHydra[] = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr const char* kOthers[] = {
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "PMIX_RANK",
    "SLURM_PROCID",
    kLauncherPidVariable,
    kListenFdVariable};

/// Slurm numbers the steps that are none (batch script, interactive shell) from here.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  bool has(const std::string& name) const {
    return environment_.contains(name);
  }

  const std::string& text(const std::string& name) const {
    return environment_.at(name);
  }

  /// "NAME=value", for messages.
  std::string shown(const std::string& name) const {
    return name + "=" + text(name);
  }

  int64_t number(
      const std::string& name,
      int64_t least = 0,
      int64_t most = std::numeric_limits<int32_t>::max()) const {
    const std::string& value = text(name);
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < least ||
        number > most) {
      throw UserError("{}: not a whole number from {} to {}", shown(name), least, most);
    }
    return number;
  }

  /// True where all are set, false where none is; else a UserError that names each.
  bool complete(std::span<const char* const> names, const char* launcher) const {
    std::vector<std::string> set;
    std::vector<std::string> missing;
    for (const char* name : names) {
      has(name) ? set.push_back(shown(name)) : missing.push_back(name);
    }
    if (!set.empty() && !missing.empty()) {
      throw UserError(
          "{} {} set, but {} {} not: the variables of {} go together; set all of them, unset them "
          "all, or give --rank, --world-size, --local-rank, --master-address and --master-port",
          fmt::join(set, ", "),
          set.size() == 1 ? "is" : "are",
          fmt::join(missing, ", "),
          missing.size() == 1 ? "is" : "are",
          launcher);
    }
    return missing.empty();
  }

 private:
  const Environment& environment_;
};

/// Refuses what no job can be. Names are what the four numbers came from.
void check_ranks(const RankEnvironment& ranks) {
  const auto& from = ranks.sources;
  const auto refuse = [&](const char* a, const char* b, const char* rule) {
    throw UserError("{} contradicts {}: {}", from.at(a), from.at(b), rule);
  };
  if (ranks.world_size < 1) {
    throw UserError("{}: there is at least one rank", from.at("world_size"));
  }
  if (ranks.rank >= ranks.world_size) {
    refuse("rank", "world_size", "ranks count from 0 to one below the number of ranks");
  }
  if (ranks.local_rank >= ranks.local_world_size) {
    refuse("local_rank", "local_world_size", "local ranks count from 0 to one below their number");
  }
  if (ranks.local_world_size > ranks.world_size) {
    refuse("local_world_size", "world_size", "a host has no more ranks than the job");
  }
  if (ranks.local_rank > ranks.rank) {
    refuse("local_rank", "rank", "local ranks count a host's ranks in rank order");
  }
}

void set(RankEnvironment& ranks, const Reader& reader, std::span<const char* const> names) {
  const std::array<std::pair<const char*, int*>, 4> values = {
      {{"rank", &ranks.rank},
       {"world_size", &ranks.world_size},
       {"local_rank", &ranks.local_rank},
       {"local_world_size", &ranks.local_world_size}}};
  for (size_t i = 0; i < values.size(); ++i) {
    *values[i].second = static_cast<int>(reader.number(names[i]));
    ranks.sources[values[i].first] = reader.shown(names[i]);
  }
}

void set_meeting_point(
    RankEnvironment& ranks,
    std::string address,
    const std::string& address_source,
    int64_t port,
    const std::string& port_source) {
  ranks.address = std::move(address);
  ranks.sources["address"] = address_source;
  ranks.port = static_cast<int>(port);
  ranks.sources["port"] = port_source;
}

RankEnvironment from_flags(const RankFlags& flags) {
  std::vector<std::string> set;
  std::vector<std::string> missing;
  const auto note = [&](bool given, const char* name) {
    (given ? set : missing).emplace_back(name);
  };
  note(flags.rank.has_value(), "--rank");
  note(flags.world_size.has_value(), "--world-size");
  note(flags.local_rank.has_value(), "--local-rank");
  note(flags.address.has_value(), "--master-address");
  note(flags.port.has_value(), "--master-port");
  if (!missing.empty()) {
    throw UserError(
        "{} without {}: a rank that is given by hand needs all of them",
        set.empty() ? "--local-world-size" : fmt::format("{}", fmt::join(set, ", ")),
        fmt::join(missing, ", "));
  }
  RankEnvironment ranks;
  ranks.how = RankSource::kFlags;
  const auto take = [&](const char* key, const char* flag, int64_t value, int64_t most) {
    ranks.sources[key] = fmt::format("{}={}", flag, value);
    if (value < 0 || value > most) {
      throw UserError("{}={}: not a whole number from 0 to {}", flag, value, most);
    }
    return static_cast<int>(value);
  };
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  ranks.rank = take("rank", "--rank", *flags.rank, kMost);
  ranks.world_size = take("world_size", "--world-size", *flags.world_size, kMost);
  ranks.local_rank = take("local_rank", "--local-rank", *flags.local_rank, kMost);
  ranks.port = take("port", "--master-port", *flags.port, 65535);
  if (ranks.port == 0) {
    throw UserError("--master-port=0: all ranks must know the port; give one from 1 to 65535");
  }
  ranks.address = *flags.address;
  ranks.sources["address"] = "--master-address=" + ranks.address;
  if (ranks.address.empty()) {
    throw UserError("--master-address is empty; give the name or address of rank 0's host");
  }
  if (flags.local_world_size) {
    ranks.local_world_size =
        take("local_world_size", "--local-world-size", *flags.local_world_size, kMost);
  } else {
    const bool local = is_loopback(ranks.address);
    ranks.local_world_size = local ? ranks.world_size : 1;
    ranks.sources["local_world_size"] = fmt::format(
        "{} (--local-world-size is not given, and {} is {})",
        ranks.local_world_size,
        ranks.sources["address"],
        local ? "this host: all ranks are here" : "no loopback address: one rank a host");
  }
  return ranks;
}

RankEnvironment from_torchrun(const Reader& reader) {
  RankEnvironment ranks;
  ranks.how = RankSource::kTorchrun;
  set(ranks, reader, kTorchrun);
  if (reader.text("MASTER_ADDR").empty()) {
    throw UserError("MASTER_ADDR is empty; set it to the name or address of rank 0's host");
  }
  set_meeting_point(
      ranks,
      reader.text("MASTER_ADDR"),
      reader.shown("MASTER_ADDR"),
      reader.number("MASTER_PORT", 1, 65535),
      reader.shown("MASTER_PORT"));
  if (reader.has("TORCHELASTIC_USE_AGENT_STORE")) {
    const std::string& value = reader.text("TORCHELASTIC_USE_AGENT_STORE");
    ranks.agent_store = value == "True" || value == "true" || value == "1";
    if (!ranks.agent_store && value != "False" && value != "false" && value != "0") {
      throw UserError("{}: neither True nor False", reader.shown("TORCHELASTIC_USE_AGENT_STORE"));
    }
  }
  if (reader.has("TORCHELASTIC_RESTART_COUNT")) {
    ranks.attempt = static_cast<int>(reader.number("TORCHELASTIC_RESTART_COUNT"));
  }
  // The six variables alone may have been exported by hand.
  ranks.parent_is_launcher = reader.has("TORCHELASTIC_RUN_ID");
  return ranks;
}

/// A port that all processes of a job compute alike, below the range from which systems take the
/// ports of outgoing connections.
int64_t derived_port(uint64_t job, uint64_t step) {
  constexpr uint64_t kFirst = 10000;
  constexpr uint64_t kCount = 20000;
  return static_cast<int64_t>(kFirst + (job * 61 + step) % kCount);
}

/// Address and port for a launcher that tells none: MASTER_ADDR and MASTER_PORT where the user set
/// them, else what can be derived. `first_host` and `port` are empty where nothing can.
void derive_meeting_point(
    RankEnvironment& ranks,
    const Reader& reader,
    const std::pair<std::string, std::string>& first_host,
    const std::optional<std::pair<int64_t, std::string>>& port) {
  if (reader.has("MASTER_ADDR") && !reader.text("MASTER_ADDR").empty()) {
    ranks.address = reader.text("MASTER_ADDR");
    ranks.sources["address"] = reader.shown("MASTER_ADDR");
  } else if (ranks.local_world_size == ranks.world_size) {
    ranks.address = "127.0.0.1";
    ranks.sources["address"] = "all ranks are on this host";
  } else {
    ranks.address = first_host.first;
    ranks.sources["address"] = first_host.second;
  }
  if (reader.has("MASTER_PORT")) {
    ranks.port = static_cast<int>(reader.number("MASTER_PORT", 1, 65535));
    ranks.sources["port"] = reader.shown("MASTER_PORT");
  } else if (port) {
    ranks.port = static_cast<int>(port->first);
    ranks.sources["port"] = port->second;
  } else {
    ranks.sources["port"] = "not known: set MASTER_PORT for all ranks";
  }
}

RankEnvironment from_mpi(const Reader& reader, RankSource how, std::span<const char* const> names) {
  RankEnvironment ranks;
  ranks.how = how;
  ranks.mpi_launched = true;
  ranks.parent_is_launcher = true;
  set(ranks, reader, names);
  // The job's name is the same on all ranks, and different for each mpirun of a machine.
  std::optional<std::pair<int64_t, std::string>> port;
  if (reader.has("PMIX_NAMESPACE")) {
    const uint64_t job = std::hash<std::string>()(reader.text("PMIX_NAMESPACE"));
    port = {derived_port(job, 0), "derived from " + reader.shown("PMIX_NAMESPACE")};
  }
  derive_meeting_point(
      ranks, reader, {"", "not known: set MASTER_ADDR to rank 0's host for all ranks"}, port);
  return ranks;
}

bool in_slurm_step(const Reader& reader) {
  return reader.has("SLURM_PROCID") && reader.has("SLURM_STEP_ID") &&
      reader.number("SLURM_STEP_ID", 0, std::numeric_limits<int64_t>::max()) < kFirstSpecialStep;
}

RankEnvironment from_slurm(const Reader& reader) {
  const char* tasks = reader.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  constexpr const char* kLayout = "SLURM_STEP_TASKS_PER_NODE";
  const char* names[] = {
      "SLURM_STEP_ID",
      "SLURM_PROCID",
      "SLURM_LOCALID",
      tasks,
      "SLURM_NODEID",
      kLayout,
      "SLURM_STEP_NODELIST",
      "SLURM_JOB_ID"};
  reader.complete(names, "a Slurm step");
  RankEnvironment ranks;
  ranks.how = RankSource::kSlurm;
  ranks.parent_is_launcher = true;
  ranks.rank = static_cast<int>(reader.number("SLURM_PROCID"));
  ranks.sources["rank"] = reader.shown("SLURM_PROCID");
  ranks.world_size = static_cast<int>(reader.number(tasks));
  ranks.sources["world_size"] = reader.shown(tasks);
  ranks.local_rank = static_cast<int>(reader.number("SLURM_LOCALID"));
  ranks.sources["local_rank"] = reader.shown("SLURM_LOCALID");

  const std::vector<int> per_node = expand_slurm_counts(reader.text(kLayout), kLayout);
  const auto node = static_cast<size_t>(reader.number("SLURM_NODEID"));
  int64_t sum = 0;
  for (const int count : per_node) {
    sum += count;
  }
  if (node >= per_node.size() || sum != ranks.world_size) {
    throw UserError(
        "{} contradicts {} and {}: it counts {} tasks on {} nodes",
        reader.shown(kLayout),
        reader.shown(tasks),
        reader.shown("SLURM_NODEID"),
        sum,
        per_node.size());
  }
  ranks.local_world_size = per_node[node];
  ranks.sources["local_world_size"] = reader.shown(kLayout) + ", " + reader.shown("SLURM_NODEID");

  const std::vector<std::string> hosts =
      expand_slurm_hosts(reader.text("SLURM_STEP_NODELIST"), "SLURM_STEP_NODELIST");
  const int64_t job = reader.number("SLURM_JOB_ID", 0, std::numeric_limits<int64_t>::max());
  const int64_t step = reader.number("SLURM_STEP_ID", 0, std::numeric_limits<int64_t>::max());
  derive_meeting_point(
      ranks,
      reader,
      {hosts.front(), "the first of " + reader.shown("SLURM_STEP_NODELIST")},
      {{derived_port(static_cast<uint64_t>(job), static_cast<uint64_t>(step)),
        fmt::format(
            "derived from {}, {}", reader.shown("SLURM_JOB_ID"), reader.shown("SLURM_STEP_ID"))}});
  return ranks;
}

/// A Slurm step whose tasks were given PMI or PMIx variables (srun --mpi=pmi2, --mpi=pmix): Slurm
/// tells the numbers, MPI_Init finds the others.
RankEnvironment from_slurm_with_mpi(const Reader& reader, const char* rank, RankSource how) {
  RankEnvironment ranks = from_slurm(reader);
  if (reader.number(rank) != ranks.rank) {
    throw UserError(
        "{} contradicts {}: one of them is left from another launcher; unset it, or give --rank, "
        "--world-size, --local-rank, --master-address and --master-port",
        reader.shown(rank),
        reader.shown("SLURM_PROCID"));
  }
  ranks.how = how;
  ranks.mpi_launched = true;
  ranks.sources["rank"] = reader.shown(rank) + ", " + reader.shown("SLURM_PROCID");
  return ranks;
}

bool has_intel_variables(const Environment& environment) {
  const auto first = environment.lower_bound("I_MPI_");
  return first != environment.end() && first->first.starts_with("I_MPI_");
}

std::optional<RankEnvironment> from_any_mpi(const Environment& environment, const Reader& reader) {
  const bool open_mpi = reader.complete(kOpenMpi, "Open MPI");
  const bool pmi = reader.has("PMI_RANK") || reader.has("PMI_SIZE");
  const bool local_hydra = reader.has("MPI_LOCALRANKID") || reader.has("MPI_LOCALNRANKS");
  if (open_mpi) {
    RankEnvironment ranks = from_mpi(reader, RankSource::kOpenMpi, kOpenMpi);
    for (const char* other : {"PMI_RANK", "PMIX_RANK"}) {
      if (reader.has(other) && reader.number(other) != ranks.rank) {
        throw UserError(
            "{} contradicts {}: two MPI launchers have set variables; unset those of the outer "
            "one, or give --rank, --world-size, --local-rank, --master-address and --master-port",
            ranks.sources["rank"],
            reader.shown(other));
      }
    }
    return ranks;
  }
  const RankSource hydra =
      has_intel_variables(environment) ? RankSource::kIntelMpi : RankSource::kMpich;
  if (pmi && !local_hydra && in_slurm_step(reader)) {
    reader.complete(std::span(kHydra).first(2), "PMI");
    return from_slurm_with_mpi(reader, "PMI_RANK", hydra);
  }
  if (reader.complete(kHydra, name_of(hydra))) {
    return from_mpi(reader, hydra, kHydra);
  }
  if (reader.has("PMIX_RANK")) {
    if (!in_slurm_step(reader)) {
      throw UserError(
          "{} is set, but nothing tells the number of ranks (OMPI_COMM_WORLD_SIZE, or a Slurm "
          "step's SLURM_PROCID, SLURM_STEP_ID and SLURM_NTASKS): give --rank, --world-size, "
          "--local-rank, --master-address and --master-port",
          reader.shown("PMIX_RANK"));
    }
    return from_slurm_with_mpi(reader, "PMIX_RANK", RankSource::kPmix);
  }
  return std::nullopt;
}

RankEnvironment single(const Reader& reader) {
  RankEnvironment ranks;
  const std::string why = reader.has("SLURM_JOB_ID")
      ? fmt::format(
            "a single process: within {} but in no step; start ranks with srun",
            reader.shown("SLURM_JOB_ID"))
      : "a single process: no launcher's variables are set";
  for (const char* key : {"rank", "world_size", "local_rank", "local_world_size"}) {
    ranks.sources[key] = why;
  }
  return ranks;
}

bool any(const RankFlags& flags) {
  return flags.rank || flags.world_size || flags.local_rank || flags.local_world_size ||
      flags.address || flags.port;
}

RankEnvironment detect(const Environment& environment, const RankFlags& flags) {
  const Reader reader(environment);
  if (any(flags)) {
    return from_flags(flags);
  }
  // MASTER_ADDR and MASTER_PORT alone are only a meeting point, for whoever tells the ranks.
  const auto ranks_of_torchrun = std::span(kTorchrun).first(4);
  for (const char* name : ranks_of_torchrun) {
    if (reader.has(name)) {
      reader.complete(kTorchrun, "torchrun");
      return from_torchrun(reader);
    }
  }
  if (std::optional<RankEnvironment> ranks = from_any_mpi(environment, reader)) {
    return *std::move(ranks);
  }
  return in_slurm_step(reader) ? from_slurm(reader) : single(reader);
}

} // namespace

Environment current_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

const char* name_of(RankSource source) {
  constexpr const char* kNames[] = {
      "flags", "torchrun", "Open MPI", "MPICH", "Intel MPI", "PMIx", "Slurm", "single process"};
  return kNames[static_cast<size_t>(source)];
}

RankEnvironment detect_rank(const Environment& environment, const RankFlags& flags) {
  RankEnvironment ranks = detect(environment, flags);
  check_ranks(ranks);
  const Reader reader(environment);
  if (ranks.how == RankSource::kFlags || ranks.how == RankSource::kSingle) {
    return ranks;
  }
  if (reader.has(kLauncherPidVariable)) {
    ranks.launcher_pid = static_cast<int>(reader.number(kLauncherPidVariable, 1));
    ranks.parent_is_launcher = true;
  }
  if (reader.has(kListenFdVariable) && ranks.rank == 0) {
    ranks.listen_fd = static_cast<int>(reader.number(kListenFdVariable));
  }
  return ranks;
}

std::string RankEnvironment::describe() const {
  std::string text = fmt::format(
      "rank {} of {} ({}, {})\nlocal rank {} of {} ({}, {})\n",
      rank,
      world_size,
      sources.at("rank"),
      sources.at("world_size"),
      local_rank,
      local_world_size,
      sources.at("local_rank"),
      sources.at("local_world_size"));
  if (sources.contains("address")) {
    text += fmt::format(
        "address {} ({})\nport {} ({})\n",
        address.empty() ? "-" : address,
        sources.at("address"),
        port == 0 ? "-" : std::to_string(port),
        sources.at("port"));
  }
  return text + "started by " + name_of(how) + "\n";
}

void remove_rank_variables(Environment& environment) {
  for (const std::span<const char* const> names :
       {std::span<const char* const>(kTorchrun),
        std::span<const char* const>(kOpenMpi),
        std::span<const char* const>(kHydra),
        std::span<const char* const>(kOthers)}) {
    for (const char* name : names) {
      environment.erase(name);
    }
  }
}

} // namespace palimpsest
