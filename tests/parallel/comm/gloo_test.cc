// Covers: parallel/comm/c10d_engine.cc
#include <palimpsest/parallel/comm/gloo.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/engine_communicator.h>
#include <palimpsest/parallel/comm/rendezvous.h>
#include <palimpsest/tests/parallel/comm/conformance.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

namespace palimpsest {
namespace {

/// Ranks as threads of this process, with connections and heartbeats as between processes.
std::vector<std::unique_ptr<Communicator>> gloo_world(int size, const CommSettings& settings) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<int> everybody(size);
  std::iota(everybody.begin(), everybody.end(), 0);
  std::vector<std::unique_ptr<Communicator>> world(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto heartbeat = std::make_shared<Heartbeat>(rank, std::make_shared<RankStatus>());
      heartbeat->start(
          std::make_unique<StoreBoard>(store), std::chrono::milliseconds(50), "the store is gone");
      std::shared_ptr<Engine> engine;
      if (size > 1) {
        engine = gloo_engine(store, rank, size, {.address = "127.0.0.1"});
      }
      world[rank] = engine_communicator(
          engine, {.name = "world", .ranks = everybody, .rank = rank}, settings, heartbeat);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return world;
}

INSTANTIATE_TEST_SUITE_P(
    Gloo,
    Conformance,
    ::testing::ValuesIn(worlds_of_threads("gloo", gloo_world)),
    name_of);

} // namespace
} // namespace palimpsest
