#include <palimpsest/parallel/comm/connect.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/host.h>
#include <palimpsest/parallel/comm/checked.h>
#include <palimpsest/parallel/comm/engine_communicator.h>
#include <palimpsest/parallel/comm/gloo.h>
#include <palimpsest/parallel/comm/mpi.h>
#include <palimpsest/parallel/comm/nccl.h>
#include <palimpsest/parallel/comm/rendezvous.h>

#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

namespace palimpsest {

namespace {

using Clock = std::chrono::steady_clock;

/// How long the holder of the store stays after a failure.
constexpr std::chrono::milliseconds kLeaving{1500};
/// Ranks that one store serves with a sign of life per interval; more of them beat less often.
constexpr int kBeatsPerInterval = 64;

/// The board of a whole world, over the store where its ranks met.
class WorldBoard final : public Board {
 public:
  WorldBoard(Store store, const WorldSettings& settings, bool holds_store)
      : store_(std::move(store)), board_(store_.store->clone()), settings_(settings),
        holds_store_(holds_store) {}

  void put(const std::string& key, const std::string& text) override {
    board_.put(name(key), text);
  }
  std::optional<std::string> get(const std::string& key) override {
    return board_.get(name(key));
  }

  /// Connections close when all have left: what is under way still arrives. After a failure only who
  /// holds the store stays, for others to read the reason there.
  void leave(const std::function<bool()>& ended) override {
    const Clock::time_point start = Clock::now();
    const std::chrono::microseconds pause(2000 + 100 * settings_.world_size);
    int64_t left = store_.store->add(name("left"), 1);
    while (left < settings_.world_size) {
      const auto waited = Clock::now() - start;
      if (ended() ? !holds_store_ || waited > kLeaving : waited > settings_.timeout) {
        return;
      }
      std::this_thread::sleep_for(pause);
      left = store_.store->add(name("left"), 0);
    }
  }

 private:
  std::string name(const std::string& key) const {
    return fmt::format("attempt {}/{}", settings_.attempt, key);
  }

  Store store_;
  StoreBoard board_; // a connection of its own: others may wait in the first
  WorldSettings settings_;
  bool holds_store_;
};

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// All ranks of this job, and nobody else, are at the store.
void wait_for_all(c10d::Store& store, const WorldSettings& settings) {
  const auto key = [&](const std::string& name) {
    return fmt::format("attempt {}/{}", settings.attempt, name);
  };
  const auto joined = [&](int rank) { return key(fmt::format("joined/{}", rank)); };
  if (store.add(joined(settings.rank), 1) != 1) {
    throw UserError(
        "rank {} has already come to {}:{}: another job uses this port, or two processes were "
        "given the same rank; give each job a port of its own",
        settings.rank,
        settings.address,
        settings.port);
  }
  const auto deadline = Clock::now() + settings.startup_timeout;
  int64_t come = store.add(key("joined"), 1);
  while (come < settings.world_size) {
    if (Clock::now() > deadline) {
      std::vector<int> missing;
      for (int rank = 0; rank < settings.world_size; ++rank) {
        if (!store.check({joined(rank)})) {
          missing.push_back(rank);
        }
      }
      throw EnvironmentError(
          "{} {} did not come to {}:{} within {} s, {} of {} ranks did: do they all run, with the "
          "same address and port? parallel.startup_timeout sets how long they are waited for",
          missing.size() == 1 ? "rank" : "ranks",
          fmt::join(missing, ", "),
          settings.address,
          settings.port,
          seconds(settings.startup_timeout),
          come,
          settings.world_size);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    come = store.add(key("joined"), 0);
  }
}

void start_heartbeat(
    Heartbeat& heartbeat,
    const Store& store,
    const WorldSettings& settings,
    bool holds_store) {
  const int factor = 1 + settings.world_size / kBeatsPerInterval;
  heartbeat.start(
      std::make_unique<WorldBoard>(store, settings, holds_store),
      settings.heartbeat * factor,
      settings.agent_store ? "the launcher has ended, its store cannot be reached any more"
                           : "rank 0 has ended, its store cannot be reached any more");
}

/// What a world is made of before it is a communicator.
struct Parts {
  std::shared_ptr<Engine> engine;
  Store store;
};

Parts connect_gloo(WorldSettings settings, Heartbeat& heartbeat) {
  if (settings.address.empty() || settings.port < 1 || settings.port > 65535) {
    throw UserError(
        "{} ranks over {} need an address and a port from 1 to 65535 where rank 0 can be reached, "
        "not '{}:{}': set MASTER_ADDR and MASTER_PORT to the same for all ranks",
        settings.world_size,
        settings.backend == "auto" ? "gloo" : settings.backend,
        settings.address,
        settings.port);
  }
  const bool holds_store = settings.rank == 0 && !settings.agent_store;
  const Store store = meet(
      {.address = settings.address,
       .holder = settings.agent_store ? "the launcher" : "rank 0",
       .port = settings.port,
       .serve = holds_store,
       .listen_fd = settings.listen_fd,
       .timeout = settings.startup_timeout});
  wait_for_all(*store.store, settings);
  start_heartbeat(heartbeat, store, settings, holds_store);
  const auto gloo_store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("attempt {}/gloo", settings.attempt), store.store);
  return {
      gloo_engine(
          gloo_store,
          settings.rank,
          settings.world_size,
          {.address = is_loopback(settings.address) ? "127.0.0.1" : "",
           .startup_timeout = settings.startup_timeout}),
      store};
}

/// Waits for an operation of a world whose heartbeats do not beat yet.
void finish(Request& request, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (!request.poll()) {
    if (Clock::now() > deadline) {
      throw EnvironmentError(
          "the ranks did not meet over MPI within {} s; parallel.startup_timeout sets how long "
          "they are waited for",
          seconds(timeout));
    }
    std::this_thread::yield();
  }
}

/// Rank 0 opens a store at a free port for the heartbeats, and tells the others where.
Parts connect_mpi(WorldSettings settings, Heartbeat& heartbeat) {
  const MpiWorld world = mpi_world();
  if (world.rank != settings.rank || world.size != settings.world_size) {
    throw UserError(
        "the launcher says rank {} of {}, but the MPI library of this program says rank {} of {}: "
        "they belong to different MPI installations. Use the launcher of the MPI that the program "
        "was built with, or backend gloo",
        settings.rank,
        settings.world_size,
        world.rank,
        world.size);
  }
  std::array<char, 512> where{};
  Store store;
  if (settings.rank == 0) {
    std::string host = "127.0.0.1";
    if (!world.one_host) {
      host = host_name();
    }
    store = meet({.address = host, .serve = true, .timeout = settings.startup_timeout});
    fmt::format_to_n(where.data(), where.size() - 1, "{} {}", store.port, host);
  }
  const at::Tensor told = at::zeros({std::ssize(where)}, at::kByte);
  std::memcpy(told.data_ptr(), where.data(), where.size());
  finish(*world.engine->broadcast(told, 0), settings.startup_timeout);
  const std::string text = static_cast<const char*>(told.const_data_ptr());
  settings.port = std::stoi(text);
  settings.address = text.substr(text.find(' ') + 1);
  if (settings.rank != 0) {
    store = meet(
        {.address = settings.address,
         .holder = "rank 0",
         .port = settings.port,
         .timeout = settings.startup_timeout});
  }
  wait_for_all(*store.store, settings);
  start_heartbeat(heartbeat, store, settings, settings.rank == 0);
  return {world.engine, store};
}

bool takes_mpi(const WorldSettings& settings) {
  if (settings.backend == "mpi") {
    if (!settings.mpi_launched) {
      throw UserError(
          "backend mpi needs ranks that an MPI launcher started: use mpirun or srun, or choose "
          "backend gloo");
    }
    return true; // mpi_world says where this build has none
  }
  return settings.backend != "gloo" && settings.mpi_launched && has_mpi();
}

bool takes_nccl(const WorldSettings& settings) {
  if (settings.backend == "nccl" && !settings.cuda) {
    throw UserError(
        "backend nccl is for tensors on CUDA devices, this run's are on the CPU: choose gloo or "
        "mpi");
  }
  return settings.cuda && (settings.backend == "nccl" || settings.backend == "auto");
}

void validate(const WorldSettings& settings) {
  static constexpr std::array<const char*, 5> kBackends{
      "auto", "gloo", "in_process", "mpi", "nccl"};
  if (std::ranges::find(kBackends, settings.backend) == kBackends.end()) {
    throw UserError(
        "backend '{}' is unknown; give one of {}", settings.backend, fmt::join(kBackends, ", "));
  }
  if (settings.world_size < 1 || settings.rank < 0 || settings.rank >= settings.world_size) {
    throw UserError(
        "rank {} of {} is no rank: ranks count from 0", settings.rank, settings.world_size);
  }
  if (settings.backend == "in_process" && settings.world_size > 1) {
    throw UserError(
        "backend in_process has one rank per process, this world has {}", settings.world_size);
  }
}

} // namespace

std::unique_ptr<Communicator> connect(const WorldSettings& settings) try {
  validate(settings);
  auto heartbeat = std::make_shared<Heartbeat>(
      settings.rank, settings.status ? settings.status : std::make_shared<RankStatus>());
  Parts parts;
  if (settings.world_size > 1) {
    const bool nccl = takes_nccl(settings);
    parts = takes_mpi(settings) ? connect_mpi(settings, *heartbeat)
                                : connect_gloo(settings, *heartbeat);
    if (nccl) {
      parts.engine = nccl_engine(
          parts.engine,
          c10::make_intrusive<c10d::PrefixStore>(
              fmt::format("attempt {}/nccl", settings.attempt), parts.store.store),
          settings.rank,
          settings.world_size,
          settings.local_rank);
    }
  }
  std::vector<int> everybody(settings.world_size);
  std::iota(everybody.begin(), everybody.end(), 0);
  std::unique_ptr<Communicator> world = engine_communicator(
      parts.engine,
      {.name = "world", .ranks = everybody, .rank = settings.rank},
      {.timeout = settings.timeout},
      std::move(heartbeat));
  return settings.checked ? checked(std::move(world)) : std::move(world);
} catch (const Error&) {
  throw;
} catch (const std::exception& error) {
  // Of a library: most likely who holds the store ended while ranks met.
  throw EnvironmentError(
      "rank {} of {} lost the others while they met; the first of them to end says why.\n{}",
      settings.rank,
      settings.world_size,
      message_of(error));
}

} // namespace palimpsest
